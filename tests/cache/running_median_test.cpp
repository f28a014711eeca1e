#include "millrace/cache/running_median.h"

#include <gtest/gtest.h>

namespace millrace::cache {
namespace {

TEST(RunningMedian, IsOfWhatThereIs) {
  RunningMedian median;
  EXPECT_TRUE(median.empty());
  EXPECT_EQ(median.value(), 0);
  median.add(3);
  EXPECT_EQ(median.value(), 3);
  median.add(1);
  median.add(2);
  EXPECT_EQ(median.value(), 2);
}

TEST(RunningMedian, FewOutliersChangeNothing) {
  RunningMedian median;
  for (size_t i = 0; i < RunningMedian::kWindow; ++i) median.add(1);
  for (size_t i = 0; i < RunningMedian::kWindow / 2; ++i) median.add(1000);
  EXPECT_EQ(median.value(), 1);
  median.add(1000);
  EXPECT_EQ(median.value(), 1000);
}

TEST(RunningMedian, ForgetsWhatIsLongAgo) {
  RunningMedian median;
  for (int i = 0; i < 100; ++i) median.add(i);
  EXPECT_EQ(median.value(), 99 - static_cast<int>(RunningMedian::kWindow / 2));
}

}  // namespace
}  // namespace millrace::cache
