#include "millrace/cache/recent_times.h"

#include <gtest/gtest.h>

namespace millrace::cache {
namespace {

TEST(RecentTimes, AreThoseThereAre) {
  RecentTimes times;
  EXPECT_TRUE(times.empty());
  EXPECT_EQ(times.median(), 0);
  EXPECT_EQ(times.least(), 0);
  times.add(3);
  EXPECT_EQ(times.median(), 3);
  times.add(1);
  times.add(2);
  EXPECT_EQ(times.median(), 2);
  EXPECT_EQ(times.least(), 1);
}

TEST(RecentTimes, FewOutliersChangeNothing) {
  RecentTimes times;
  for (size_t i = 0; i < RecentTimes::kWindow; ++i) times.add(1);
  for (size_t i = 0; i < RecentTimes::kWindow / 2; ++i) times.add(1000);
  EXPECT_EQ(times.median(), 1);
  times.add(1000);
  EXPECT_EQ(times.median(), 1000);
}

TEST(RecentTimes, ForgetsWhatIsLongAgo) {
  RecentTimes times;
  for (int i = 0; i < 100; ++i) times.add(i);
  EXPECT_EQ(times.median(), 99 - static_cast<int>(RecentTimes::kWindow / 2));
  EXPECT_EQ(times.least(), 100 - static_cast<int>(RecentTimes::kWindow));
}

}  // namespace
}  // namespace millrace::cache
