#include "millrace/plan/grow_batch.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::plan {
namespace {

job::Job job_with(job::Algorithm optimizer, int64_t batch = 64) {
  job::Job job;
  job.batch = batch;
  job.optimizer.kind = optimizer;
  job.optimizer.lr = 0.1;
  job.schedule.end_lr = 0.01;
  return job;
}

TEST(GrowBatch, EachReplicaKeepsItsPart) {
  const job::Job job = job_with(job::Algorithm::Sgd);
  EXPECT_EQ(grow_batch(job, 1, 4)->batch, 256);
  EXPECT_EQ(grow_batch(job, 2, 3)->batch, 96);
  EXPECT_EQ(grow_batch(job, 4, 1)->batch, 16);
}

TEST(GrowBatch, TheRateOfSgdFollowsTheBatch) {
  const job::Job job = job_with(job::Algorithm::Sgd);
  EXPECT_DOUBLE_EQ(grow_batch(job, 1, 4)->rate_factor, 4);
  EXPECT_DOUBLE_EQ(grow_batch(job, 4, 2)->rate_factor, 0.5);
}

TEST(GrowBatch, TheRateOfOthersFollowsTheRootOfTheBatch) {
  for (const job::Algorithm optimizer : {job::Algorithm::AdamW, job::Algorithm::Lamb}) {
    EXPECT_DOUBLE_EQ(grow_batch(job_with(optimizer), 1, 4)->rate_factor, 2);
    EXPECT_DOUBLE_EQ(grow_batch(job_with(optimizer), 2, 3)->rate_factor, std::sqrt(1.5));
  }
}

TEST(GrowBatch, NothingChangesWithAsManyReplicas) { EXPECT_FALSE(grow_batch(job_with(job::Algorithm::Sgd), 3, 3)); }

TEST(GrowBatch, NothingChangesWherePartsWouldNotBeEven) {
  EXPECT_FALSE(grow_batch(job_with(job::Algorithm::Sgd, 10), 4, 3));
  EXPECT_TRUE(grow_batch(job_with(job::Algorithm::Sgd, 12), 4, 3));
}

TEST(GrowBatch, FirstAndLastRateOfTheScheduleChangeTogether) {
  job::Job job = job_with(job::Algorithm::AdamW);
  apply(*grow_batch(job, 1, 4), job);
  EXPECT_EQ(job.batch, 256);
  EXPECT_DOUBLE_EQ(job.optimizer.lr, 0.2);
  EXPECT_DOUBLE_EQ(job.schedule.end_lr, 0.02);
}

// Whether replicas come at once or one after another.
TEST(GrowBatch, StepByStepComesToTheSame) {
  for (const job::Algorithm optimizer : {job::Algorithm::Sgd, job::Algorithm::AdamW}) {
    job::Job at_once = job_with(optimizer), in_steps = at_once;
    apply(*grow_batch(at_once, 1, 4), at_once);
    apply(*grow_batch(in_steps, 1, 2), in_steps);
    apply(*grow_batch(in_steps, 2, 4), in_steps);
    EXPECT_EQ(in_steps.batch, at_once.batch);
    EXPECT_DOUBLE_EQ(in_steps.optimizer.lr, at_once.optimizer.lr);
  }
}

}  // namespace
}  // namespace millrace::plan
