#include "millrace/job/calendar.h"

#include <gtest/gtest.h>

namespace millrace::job {
namespace {

TEST(Calendar, StepsOfOneSizeAreTheirOwnNumbers) {
  const Calendar calendar{10, {}};
  EXPECT_EQ(calendar.even(37), 37);
  EXPECT_EQ(calendar.index_in_epoch(37), 7);
  EXPECT_DOUBLE_EQ(calendar.epoch_at(37), 3.7);
}

// Three epochs of 10 steps, then 4 steps an epoch.
TEST(Calendar, LargerStepsGoOnWhereSmallerOnesFilledEpochs) {
  const Calendar calendar{4, {30, 3}};
  EXPECT_EQ(calendar.even(30), 12);
  EXPECT_DOUBLE_EQ(calendar.epoch_at(30), 3);
  EXPECT_EQ(calendar.index_in_epoch(30), 0);
  EXPECT_DOUBLE_EQ(calendar.epoch_at(35), 4.25);
  EXPECT_EQ(calendar.index_in_epoch(35), 1);
  for (int64_t step = 30; step < 50; ++step) EXPECT_EQ(calendar.step_of_even(calendar.even(step)), step);
}

}  // namespace
}  // namespace millrace::job
