#include "millrace/report/percentiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace::report {
namespace {

TEST(Percentiles, InterpolateBetweenNeighbours) {
  const std::vector<double> values = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 4);
  EXPECT_DOUBLE_EQ(percentile(values, 10), 1.3);
}

TEST(Percentiles, OfOneValueAreThatValue) {
  const std::vector<double> values = {7};
  const Percentiles result = percentiles(values);
  EXPECT_DOUBLE_EQ(result.p10, 7);
  EXPECT_DOUBLE_EQ(result.p50, 7);
  EXPECT_DOUBLE_EQ(result.p90, 7);
}

TEST(Percentiles, OfNothingAreNotANumber) { EXPECT_TRUE(std::isnan(percentiles({}).p50)); }

}  // namespace
}  // namespace millrace::report
