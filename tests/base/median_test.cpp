#include "millrace/base/median.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

double median_of(std::vector<double> values) { return median(values); }

TEST(Median, IsTheOneInTheMiddleWhateverTheOrder) {
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({1000, 1, 1, 1, -1000}), 1);
}

TEST(Median, OfAnEvenNumberIsTheGreaterOfTwo) { EXPECT_EQ(median_of({4, 1, 3, 2}), 3); }

TEST(Median, OfNothingIsZero) { EXPECT_EQ(median_of({}), 0); }

}  // namespace
}  // namespace millrace
