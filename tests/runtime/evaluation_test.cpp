// What an evaluation says does not depend on who computed which samples.
#include <gtest/gtest.h>

#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

job::Job evaluated_job() {
  job::Job job = small_job();
  job.data.test_samples = 37;  // divides nothing
  job.steps = 2;
  job.optimizer.lr = 0;  // all have the same weights, whatever they were trained with
  job.eval.every_epochs = 0;
  return job;
}

void expect_equal(const Metrics& one, const Metrics& other) {
  EXPECT_EQ(one.rows, other.rows);
  EXPECT_EQ(one.top1, other.top1);
  EXPECT_EQ(one.top5, other.top5);
  EXPECT_EQ(one.loss_sum, other.loss_sum);  // to the last bit
}

TEST(Evaluation, ReplicasOfBothKindsGiveTheFigureOfOneWorker) {
  const RunResult alone = run(evaluated_job());
  ASSERT_TRUE(alone.result.evaluation);
  EXPECT_EQ(alone.result.evaluation->rows, 37);
  for (int replicas = 2; replicas <= 5; ++replicas) {
    for (const job::Replicas kind : {job::Replicas::Split, job::Replicas::RoundRobin}) {
      SCOPED_TRACE(testing::Message() << replicas << " replicas, "
                                      << (kind == job::Replicas::Split ? "split" : "in turn"));
      job::Job job = evaluated_job();
      job.parallel.replicas = kind;
      if (kind == job::Replicas::RoundRobin) job.parallel.mode = job::Mode::PipeDream;
      job.parallel.placement = "0:0-" + std::to_string(replicas - 1);
      const RunResult many = run(job);
      ASSERT_TRUE(many.result.evaluation);
      expect_equal(*many.result.evaluation, *alone.result.evaluation);
    }
  }
}

TEST(Evaluation, StagesGiveTheFigureOfOneWorker) {
  const RunResult alone = run(evaluated_job());
  for (const char* placement : {"0:0.0:1", "0:0.0:1.0:2", "0:0-1.0:2"}) {
    SCOPED_TRACE(placement);
    job::Job job = evaluated_job();
    job.parallel.mode = job::Mode::OneFOneB;
    job.parallel.microbatches = 2;
    job.parallel.placement = placement;
    const RunResult many = run(job);
    ASSERT_TRUE(many.result.evaluation);
    expect_equal(*many.result.evaluation, *alone.result.evaluation);
  }
}

// A stage that begins with a sum may compute it, and what it sends, where its input came in: that memory must not be
// opened for the next micro-batch before the message has left. Who is late is a matter of chance: many times.
TEST(Evaluation, WhatLeavesAStageIsNotOverwrittenByWhatComesIn) {
  job::Job job = evaluated_job();
  job.model = small_vit(16, 12, 3);
  job.batch = 4;
  job.data.test_samples = 200;
  job.parallel.microbatches = 4;
  job.steps = 1;
  const RunResult alone = run(job);
  job.parallel.mode = job::Mode::OneFOneB;
  job.parallel.placement = straight(3);
  job.parallel.cuts = {"vit.encoder.layer.0.attention.output.dropout", "vit.encoder.layer.1.output.dropout"};
  for (int again = 0; again < 20; ++again) {
    expect_equal(*run(job).result.evaluation, *alone.result.evaluation);
  }
}

}  // namespace
}  // namespace millrace::runtime
