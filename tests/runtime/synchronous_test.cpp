// Synchronous modes learn what one worker learns: the same bits for any number of stages, the same numbers but for the
// order of one sum for any number of replicas.
#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

using job::Mode;
using job::Replicas;

job::Job one_worker(int microbatches, int64_t steps = 10) {
  job::Job job = small_job();
  job.steps = steps;
  job.parallel.microbatches = microbatches;
  return job;
}

TEST(Synchronous, AnyNumberOfStagesGivesTheBitsOfOneWorker) {
  const RunResult one = run(one_worker(4, 50));
  ASSERT_EQ(one.losses.size(), 50U);
  for (Mode mode : {Mode::GPipe, Mode::OneFOneB}) {
    for (int stages : {2, 3, 4}) {
      job::Job job = one_worker(4, 50);
      job.parallel.mode = mode;
      job.parallel.placement = straight(stages);
      const RunResult many = run(job);
      EXPECT_TRUE(many.state == one.state) << stages << " stages, mode " << static_cast<int>(mode);
      EXPECT_EQ(many.losses, one.losses);
    }
  }
}

TEST(Synchronous, ResidualNetworksCutInsideABlockGiveTheBitsOfOneWorker) {
  job::Job job = one_worker(2);
  job.model = {.name = "resnet_small", .classes = 10, .image_size = 16, .channels = 3};
  job.steps = 4;
  const RunResult one = run(job);
  job.parallel.mode = Mode::OneFOneB;
  for (const auto& cuts : std::vector<std::vector<std::string>>{
           {"layer2.0.bn1"}, {"layer1.0.conv2"}, {"layer1", "layer2.0.conv2"}, {"layer2.0.conv2", "layer3.0.conv2"}}) {
    job.parallel.cuts = cuts;
    job.parallel.placement = straight(static_cast<int>(cuts.size()) + 1);
    EXPECT_TRUE(run(job).state == one.state) << cuts[0];
  }
}

TEST(Synchronous, WithoutMultiBufferingTheBitsAreTheSame) {
  const RunResult one = run(one_worker(4));
  job::Job job = one_worker(4);
  job.parallel.mode = Mode::OneFOneB;
  job.parallel.placement = straight(3);
  job.parallel.multi_buffer = false;
  EXPECT_TRUE(run(job).state == one.state);
}

TEST(Synchronous, StagesThatShareWorkersGiveTheBitsOfOneWorker) {
  const RunResult one = run(one_worker(4));
  for (Mode mode : {Mode::GPipe, Mode::OneFOneB}) {
    for (const char* placement : {"0:0.0:0", "0:0.0:1.0:0", "0:0.0:1.0:0.0:1"}) {
      job::Job job = one_worker(4);
      job.parallel.mode = mode;
      job.parallel.placement = placement;
      EXPECT_TRUE(run(job).state == one.state) << placement;
    }
  }
}

TEST(Synchronous, ReplicasDifferOnlyByTheOrderOfASum) {
  const RunResult one = run(one_worker(1, 50));
  for (int replicas : {2, 3, 4}) {
    job::Job job = one_worker(1, 50);
    job.parallel.placement = fmt::format("0:0-{}", replicas - 1);
    const RunResult many = run(job);
    EXPECT_LE(largest_difference(many.state, one.state), 1e-6) << replicas << " replicas";
    EXPECT_EQ(many.result.samples, one.result.samples);
  }
}

TEST(Synchronous, ReplicasMayTakeMicrobatchesInTurn) {
  const RunResult one = run(one_worker(4));
  for (const char* placement : {"0:0-1", "0:0-3", "0:0-1.0:2-3", "0:0-3.0:4"}) {
    job::Job job = one_worker(4);
    job.parallel.mode = std::string(placement).find('.') == std::string::npos ? Mode::Dp : Mode::OneFOneB;
    job.parallel.placement = placement;
    job.parallel.replicas = Replicas::RoundRobin;
    EXPECT_LE(largest_difference(run(job).state, one.state), 1e-6) << placement;
  }
}

TEST(Synchronous, UnevenReplicationOfBatchesThatDoNotDivide) {
  job::Job base = one_worker(2);
  base.batch = 26;  // 13 rows over 7, and over 3 and 2
  base.data.train_samples = 60;
  base.steps = 10;
  const RunResult one = run(base);
  for (const char* placement : {"0:0-6.0:7", "0:0-2.0:3-4", "0:0.0:1-3", "0:0-2.0:0-1"}) {
    job::Job job = base;
    job.parallel.mode = Mode::OneFOneB;
    job.parallel.placement = placement;
    const RunResult many = run(job);
    EXPECT_LE(largest_difference(many.state, one.state), 1e-6) << placement;
    EXPECT_EQ(many.result.samples, one.result.samples);
  }
}

TEST(Synchronous, ReplicasMayTakeUnequalSharesOfTheRows) {
  job::Job base = one_worker(2);
  base.batch = 26;
  base.data.train_samples = 60;  // the last batch of an epoch has fewer rows than some shares begin at
  base.data.test_samples = 21;
  base.steps = 10;
  const RunResult one = run(base);
  struct Case {
    const char *placement, *shares;
  };
  for (const auto& [placement, shares] :
       {Case{"0:0-1", "10:3"}, Case{"0:0-2.0:0-1", "1:8:4.2:11"}, Case{"0:0-1.0:1", "3:2.1"}}) {
    job::Job job = base;
    job.parallel.mode = std::string(placement).find('.') == std::string::npos ? Mode::Dp : Mode::OneFOneB;
    job.parallel.placement = placement;
    job.parallel.shares = shares;
    const RunResult many = run(job);
    EXPECT_LE(largest_difference(many.state, one.state), 1e-6) << placement;
    EXPECT_EQ(many.result.samples, one.result.samples);
    EXPECT_EQ(many.result.evaluation->top1, one.result.evaluation->top1);
  }
}

TEST(Synchronous, RunningForwardAgainChangesNothingButMemory) {
  for (const char* model : {"alexnet_small", "resnet_small"}) {
    for (const char* placement : {"0:0.0:1.0:2", "0:0-1.0:2", "0:0.0:1.0:0"}) {
      for (Mode mode : {Mode::GPipe, Mode::OneFOneB, Mode::Ssp}) {
        job::Job job = one_worker(mode == Mode::Ssp ? 1 : 4);
        job.model = {.name = model, .classes = 10, .image_size = 16, .channels = 3};
        job.steps = 3;
        job.data.test_samples = 9;
        job.parallel.mode = mode;
        job.parallel.placement = placement;
        const RunResult kept = run(job);
        job.parallel.recompute = job::Recompute::Stage;
        const RunResult again = run(job);
        EXPECT_TRUE(again.state == kept.state) << model << " on " << placement;
        EXPECT_EQ(again.losses, kept.losses);
        EXPECT_LT(again.planned_bytes, kept.planned_bytes) << model << " on " << placement;
      }
    }
  }
}

TEST(Synchronous, SmallBucketsChangeNothing) {
  job::Job job = one_worker(1);
  job.steps = 5;
  job.parallel.placement = "0:0-2";
  const RunResult one_bucket = run(job);
  job.parallel.bucket_mib = 0.01;
  EXPECT_TRUE(run(job).state == one_bucket.state);
}

TEST(Synchronous, RunningStatisticsAreMergedOverReplicas) {
  job::Job job = one_worker(1);
  job.model = {.name = "resnet_small", .classes = 10, .image_size = 16, .channels = 3};
  job.steps = 1;
  job.optimizer.lr = 0;
  const RunResult one = run(job);
  job.parallel.placement = "0:0-1";
  const RunResult two = run(job);
  // The mean of two halves' means is the mean of the whole; their variances only nearly so.
  for (const auto& [name, tensor] : one.state.params) {
    if (!name.ends_with("bn1.running_mean") || name.find("layer") != std::string::npos) continue;
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      EXPECT_NEAR(two.state.params.at(name).data[i], tensor.data[i], 1e-6) << name;
    }
  }
}

TEST(Synchronous, EvaluationIsTheSameOnEveryTopology) {
  job::Job job = one_worker(2);
  job.steps = 4;
  job.data.test_samples = 21;
  const RunResult one = run(job);
  ASSERT_TRUE(one.result.evaluation);
  for (const char* placement : {"0:0.0:1", "0:0.0:1.0:2", "0:0.0:0"}) {
    job.parallel.mode = Mode::OneFOneB;
    job.parallel.placement = placement;
    const RunResult many = run(job);
    ASSERT_TRUE(many.result.evaluation);
    EXPECT_EQ(many.result.evaluation->rows, 21);
    EXPECT_EQ(many.result.evaluation->loss_sum, one.result.evaluation->loss_sum) << placement;
    EXPECT_EQ(many.result.evaluation->top1, one.result.evaluation->top1) << placement;
  }
}

TEST(Synchronous, EverySampleComesOnceAnEpoch) {
  for (int64_t samples : {7, 31}) {
    for (const char* placement : {"0:0", "0:0-2", "0:0.0:1", "0:0-1.0:2-4"}) {
      for (Replicas replicas : {Replicas::Split, Replicas::RoundRobin}) {
        job::Job job = one_worker(1);
        job.steps = 0;
        job.epochs = 2;
        job.batch = 12;
        job.data.train_samples = samples;
        job.parallel.placement = placement;
        job.parallel.mode = std::string(placement).find('.') == std::string::npos ? Mode::Dp : Mode::OneFOneB;
        job.parallel.replicas = replicas;
        job.parallel.microbatches = 6;
        job.batch = 30;
        const RunResult many = run(job);
        EXPECT_EQ(many.seen.size(), static_cast<size_t>(samples)) << placement;
        for (const auto& [sample, times] : many.seen) EXPECT_EQ(times, 2) << "sample " << sample << ", " << placement;
        EXPECT_EQ(many.result.samples, 2 * samples);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::runtime
