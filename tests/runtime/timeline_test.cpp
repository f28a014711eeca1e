#include "millrace/runtime/timeline.h"

#include <gtest/gtest.h>

namespace millrace::runtime {
namespace {

TEST(Timeline, KeepsTheFirstSpansAndCountsTheOthers) {
  Timeline timeline(3);
  for (int64_t i = 0; i < 5; ++i) timeline.keep({10 * i, 10 * i + 4, i, 0, Activity::Forward});
  ASSERT_EQ(timeline.spans().size(), 3u);
  EXPECT_EQ(timeline.spans().back().microbatch, 2);
  EXPECT_EQ(timeline.left_out().spans, 2);
  EXPECT_EQ(timeline.left_out().until_ns, 44);
}

TEST(Timeline, LeavesNothingOutWhileThereIsRoom) {
  Timeline timeline(3);
  for (int64_t i = 0; i < 3; ++i) timeline.keep({i, i + 1, i, 0, Activity::Forward});
  EXPECT_EQ(timeline.left_out().spans, 0);
}

}  // namespace
}  // namespace millrace::runtime
