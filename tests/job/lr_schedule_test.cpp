#include "millrace/job/lr_schedule.h"

#include <gtest/gtest.h>

namespace millrace::job {
namespace {

constexpr double kStepsPerEpoch = 10;

Optimizer with_lr(double lr) {
  Optimizer optimizer;
  optimizer.lr = lr;
  return optimizer;
}

double rate(const Schedule& schedule, int64_t step, int64_t total_steps, double lr = 0.8) {
  return learning_rate(with_lr(lr), schedule, step, kStepsPerEpoch, total_steps);
}

TEST(LrSchedule, ConstantStaysWhereItIs) {
  EXPECT_EQ(rate({}, 0, 100), 0.8);
  EXPECT_EQ(rate({}, 99, 100), 0.8);
}

TEST(LrSchedule, WarmupRisesLinearlyAndEndsAtTheFullRate) {
  Schedule schedule;
  schedule.warmup_steps = 4;
  EXPECT_DOUBLE_EQ(rate(schedule, 0, 100), 0.2);
  EXPECT_DOUBLE_EQ(rate(schedule, 1, 100), 0.4);
  EXPECT_DOUBLE_EQ(rate(schedule, 2, 100), 0.6);
  EXPECT_DOUBLE_EQ(rate(schedule, 3, 100), 0.8);
  EXPECT_DOUBLE_EQ(rate(schedule, 4, 100), 0.8);
}

TEST(LrSchedule, WarmupInEpochsMayBeFractional) {
  Schedule schedule;
  schedule.warmup_epochs = 0.4;  // 4 of 10 steps
  EXPECT_DOUBLE_EQ(rate(schedule, 0, 100), 0.2);
  EXPECT_DOUBLE_EQ(rate(schedule, 3, 100), 0.8);
}

TEST(LrSchedule, CosineFallsOverTheStepsThatRemain) {
  Schedule schedule;
  schedule.kind = Decay::Cosine;
  schedule.warmup_steps = 2;
  const int64_t total = 8;  // 6 after warm-up
  EXPECT_DOUBLE_EQ(rate(schedule, 1, total), 0.8);
  EXPECT_DOUBLE_EQ(rate(schedule, 2, total), 0.8);
  EXPECT_NEAR(rate(schedule, 4, total), 0.6, 1e-12);  // cos(pi / 3) = 1/2
  EXPECT_NEAR(rate(schedule, 5, total), 0.4, 1e-12);  // half of the way
  EXPECT_NEAR(rate(schedule, 6, total), 0.2, 1e-12);
  EXPECT_NEAR(rate(schedule, 8, total), 0.0, 1e-12);
}

TEST(LrSchedule, CosineEndsAtTheEndRate) {
  Schedule schedule;
  schedule.kind = Decay::Cosine;
  schedule.end_lr = 0.2;
  EXPECT_DOUBLE_EQ(rate(schedule, 0, 10), 0.8);
  EXPECT_NEAR(rate(schedule, 5, 10), 0.5, 1e-12);
  EXPECT_NEAR(rate(schedule, 10, 10), 0.2, 1e-12);
}

TEST(LrSchedule, StepMultipliesAtEachMilestone) {
  Schedule schedule;
  schedule.kind = Decay::Step;
  schedule.milestones = {1, 2.5};
  EXPECT_DOUBLE_EQ(rate(schedule, 9, 40), 0.8);
  EXPECT_DOUBLE_EQ(rate(schedule, 10, 40), 0.08);
  EXPECT_DOUBLE_EQ(rate(schedule, 24, 40), 0.08);
  EXPECT_DOUBLE_EQ(rate(schedule, 25, 40), 0.008);
}

TEST(LrSchedule, AMilestoneBetweenTwoStepsCountsFromTheSecond) {
  Schedule schedule;
  schedule.kind = Decay::Step;
  schedule.milestones = {3};
  const double steps_per_epoch = 10.0 / 3;  // the milestone is step 10, but not exactly so in floating point
  EXPECT_DOUBLE_EQ(learning_rate(with_lr(1), schedule, 9, steps_per_epoch, 40), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(with_lr(1), schedule, 10, steps_per_epoch, 40), 0.1);
  schedule.milestones = {1};  // step 3.33
  EXPECT_DOUBLE_EQ(learning_rate(with_lr(1), schedule, 3, steps_per_epoch, 40), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(with_lr(1), schedule, 4, steps_per_epoch, 40), 0.1);
}

TEST(LrSchedule, PolynomialFallsByItsPower) {
  Schedule schedule;
  schedule.kind = Decay::Polynomial;
  schedule.power = 2;
  schedule.end_lr = 0.1;
  EXPECT_DOUBLE_EQ(rate(schedule, 0, 10, 0.5), 0.5);
  EXPECT_NEAR(rate(schedule, 5, 10, 0.5), 0.2, 1e-12);  // 0.1 + 0.4 / 4
  EXPECT_NEAR(rate(schedule, 10, 10, 0.5), 0.1, 1e-12);
}

TEST(LrSchedule, LinearFallsEvenlyAfterWarmup) {
  Schedule schedule;
  schedule.kind = Decay::Linear;
  schedule.warmup_steps = 2;
  schedule.end_lr = 0.1;
  EXPECT_DOUBLE_EQ(rate(schedule, 0, 10, 0.5), 0.25);
  EXPECT_DOUBLE_EQ(rate(schedule, 2, 10, 0.5), 0.5);
  EXPECT_NEAR(rate(schedule, 6, 10, 0.5), 0.3, 1e-12);
  EXPECT_NEAR(rate(schedule, 10, 10, 0.5), 0.1, 1e-12);
}

TEST(LrSchedule, StepsPastTheEndKeepTheLastRate) {
  Schedule schedule;
  schedule.kind = Decay::Polynomial;
  EXPECT_EQ(rate(schedule, 1000, 10), 0.0);
}

TEST(LrSchedule, ARunShorterThanItsWarmupNeverDecays) {
  Schedule schedule;
  schedule.kind = Decay::Cosine;
  schedule.warmup_steps = 8;
  EXPECT_DOUBLE_EQ(rate(schedule, 3, 4), 0.4);
  EXPECT_DOUBLE_EQ(rate(schedule, 8, 8), 0.8);
}

}  // namespace
}  // namespace millrace::job
