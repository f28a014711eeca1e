// What the simulator makes of a run's own times.
#include "millrace/runtime/replay.h"

#include <gtest/gtest.h>

#include "millrace/runtime/op_times.h"

namespace millrace::runtime {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Workers that computed every pass of every micro-batch in one second, and updated in `step_s`.
std::vector<WorkerRecord> records(int workers, int64_t microbatches, int64_t updates, double step_s) {
  std::vector<WorkerRecord> all;
  for (int w = 0; w < workers; ++w) {
    WorkerRecord& record = all.emplace_back();
    record.worker = w;
    for (Activity activity : {Activity::Forward, Activity::InputGrad, Activity::WeightGrad}) {
      for (int64_t m = 0; m < microbatches; ++m) record.spans.push_back({0, kSecond, m, w, activity});
    }
    for (int64_t u = 0; u < updates; ++u) {
      record.spans.push_back({0, static_cast<int64_t>(step_s * kSecond), u, w, Activity::Step});
    }
  }
  return all;
}

plan::Plan chain_plan(job::Mode mode, int stages, int microbatches) {
  plan::Plan plan;
  plan.pipeline = schedule::chain(mode, stages, microbatches);
  return plan;
}

TEST(Replay, AFlushedStepIsThePipelinesMakespanAndItsUpdate) {
  const plan::Plan plan = chain_plan(job::Mode::OneFOneB, 3, 4);
  const auto shape = lower(compute_schedule(plan.pipeline, 1));
  // (micro-batches + stages - 1) turns of forward and both gradients, then the first stage's update.
  EXPECT_DOUBLE_EQ(replay(plan, shape, records(3, 12, 3, 0.5)).value().step_s, (4 + 3 - 1) * 3 + 0.5);
}

TEST(Replay, WithoutAFlushAStepIsTheSlowestStage) {
  const plan::Plan plan = chain_plan(job::Mode::Ssp, 2, 1);
  const auto shape = lower(compute_schedule(plan.pipeline, 8));
  EXPECT_NEAR(replay(plan, shape, records(2, 20, 20, 0.25)).value().step_s, 3.25, 1e-9);
}

TEST(Replay, SaysWhatBalanceWouldGive) {
  const plan::Plan plan = chain_plan(job::Mode::OneFOneB, 2, 4);
  const auto shape = lower(compute_schedule(plan.pipeline, 1));
  std::vector<WorkerRecord> uneven = records(2, 12, 3, 0);
  for (Span& span : uneven[1].spans) span.end_ns /= 3;  // the second stage has a third of the first's work
  const Replay replayed = replay(plan, shape, uneven).value();
  EXPECT_NEAR(replayed.step_s, 4 * 3, 1e-6);  // the first stage: the second is done meanwhile
  EXPECT_NEAR(replayed.busy_s, (4 * 3 + 4 * 1) / 2.0, 1e-6);
  EXPECT_NEAR(replayed.balanced_step_s, (4 + 2 - 1) * 2, 1e-6);
}

TEST(Replay, TooShortARunIsNotReplayed) {
  const plan::Plan plan = chain_plan(job::Mode::OneFOneB, 2, 4);
  const auto shape = lower(compute_schedule(plan.pipeline, 1));
  EXPECT_FALSE(replay(plan, shape, records(2, 4, 1, 0)));  // only the update that warms up
  EXPECT_FALSE(replay(plan, shape, {}));
}

TEST(OpSeconds, UpdatesCountOnceAStep) {
  profile::Profile profile;
  profile.operators.resize(2);
  profile.operators[0].forward.median = 1;
  profile.operators[0].input_grad.median = 2;
  profile.operators[0].weight_grad.median = 3;
  profile.operators[0].update.median = 8;
  EXPECT_DOUBLE_EQ(op_seconds(profile, 1)[0], 14);
  EXPECT_DOUBLE_EQ(op_seconds(profile, 4)[0], 8);
  EXPECT_GT(op_seconds(profile, 4)[1], 0) << "an operator without time still has to go somewhere";
}

}  // namespace
}  // namespace millrace::runtime
