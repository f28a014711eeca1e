#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "millrace/job/validate.h"

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Validates a job of a mode and a placement after a change to it.
std::function<void()> placed(
    Mode mode, const std::string& placement, const std::function<void(Job&)>& change = [](Job&) {}) {
  return [=] {
    Job job;
    job.steps = 1;
    job.batch = 56;
    job.parallel.mode = mode;
    job.parallel.placement = placement;
    change(job);
    validate(job, "job.yaml");
  };
}

template <typename Message>
auto refuses(Message message) {
  return ThrowsMessage<std::invalid_argument>(message);
}

TEST(ValidateParallel, GoodJobsPass) {
  EXPECT_NO_THROW(placed(Mode::Dp, "")());
  EXPECT_NO_THROW(placed(Mode::Dp, "0:0-7,1:0-7")());
  EXPECT_NO_THROW(placed(Mode::Ssp, "0:0-7")());
  EXPECT_NO_THROW(
      placed(Mode::PipeDream, "0:0-6.0:7", [](Job& job) { job.parallel.replicas = Replicas::RoundRobin; })());
  for (Mode mode : {Mode::GPipe, Mode::OneFOneB, Mode::PipeDream, Mode::Ssp}) {
    EXPECT_NO_THROW(placed(mode, "0:0-6.0:7", [](Job& job) { job.parallel.stage_weights = "10:1"; })());
  }
}

TEST(ValidateParallel, DataParallelHasOneStage) {
  EXPECT_THAT(placed(Mode::Dp, "0:0.0:1"),
              refuses("job.yaml: parallel.mode is dp and there are 2 stages; dp has one: write parallel.mode: 1f1b, or "
                      "a placement without '.', e.g. parallel.placement: 0:0-7"));
}

TEST(ValidateParallel, PipelinesSayWhereTheirStagesRun) {
  for (const auto& [mode, name] : {std::pair(Mode::GPipe, "gpipe"), std::pair(Mode::OneFOneB, "1f1b"),
                                   std::pair(Mode::PipeDream, "pipedream"), std::pair(Mode::Ssp, "ssp")}) {
    EXPECT_THAT(placed(mode, ""), refuses(std::string("job.yaml: parallel.mode is ") + name +
                                          " and parallel.placement empty; write where each stage runs, e.g. "
                                          "parallel.placement: 0:0.0:1, or parallel.mode: dp"));
  }
}

TEST(ValidateParallel, StagesBeginWhereOneKeySays) {
  EXPECT_THAT(placed(Mode::GPipe, "0:0.0:1",
                     [](Job& job) {
                       job.parallel.stage_weights = "1:1";
                       job.parallel.cuts = {"layer2"};
                     }),
              refuses("job.yaml: parallel.stage_weights and parallel.cuts both say where stages begin; remove one of "
                      "them"));
  const auto with_file = [](const std::string& weights, std::vector<std::string> cuts) {
    return placed(Mode::GPipe, "", [=](Job& job) {
      job.parallel.stage_file = "stages.json";
      job.parallel.stage_weights = weights;
      job.parallel.cuts = cuts;
    });
  };
  EXPECT_THAT(with_file("1:1", {}),
              refuses("job.yaml: parallel.stage_file and parallel.stage_weights both say where stages begin; remove "
                      "one of them"));
  EXPECT_THAT(with_file("", {"layer2"}), refuses(HasSubstr("parallel.stage_file and parallel.cuts both say")));
}

TEST(ValidateParallel, StagesRunWhereOneKeySays) {
  EXPECT_THAT(placed(Mode::GPipe, "0:0.0:1", [](Job& job) { job.parallel.stage_file = "stages.json"; }),
              refuses("job.yaml: parallel.placement and parallel.stage_file both say where stages run; remove one of "
                      "them"));
}

TEST(ValidateParallel, AStageFileCountsAsAPlacement) {
  const std::string path = testing::TempDir() + "validate_parallel_test" + std::to_string(::getpid());
  std::ofstream(path) << R"({"module_to_stage_map":[0,1,1],"stage_to_rank_map":{"0":[0,1,2],"1":[3]}})";
  const auto with_file = [&](Mode mode) { return placed(mode, "", [=](Job& job) { job.parallel.stage_file = path; }); };
  EXPECT_NO_THROW(with_file(Mode::PipeDream)());
  EXPECT_THAT(with_file(Mode::Dp), refuses(HasSubstr("parallel.mode is dp and there are 2 stages")));
  std::filesystem::remove(path);
  EXPECT_THAT(with_file(Mode::PipeDream), refuses("job.yaml: parallel.stage_file: " + path + ": no such stage file"));
}

TEST(ValidateParallel, EveryStageHasItsWeight) {
  EXPECT_THAT(placed(Mode::GPipe, "0:0.0:1", [](Job& job) { job.parallel.stage_weights = "3:2:1"; }),
              refuses("job.yaml: parallel.stage_weights 3:2:1 has 3 weights and there are 2 stages; write one for "
                      "each"));
  EXPECT_THAT(placed(Mode::Dp, "", [](Job& job) { job.parallel.stage_weights = "3:2"; }),
              refuses(HasSubstr("has 2 weights and there are 1 stages")));
}

TEST(ValidateParallel, EveryStageAfterTheFirstHasItsCut) {
  EXPECT_THAT(placed(Mode::GPipe, "0:0.0:1.0:2", [](Job& job) { job.parallel.cuts = {"layer2"}; }),
              refuses("job.yaml: parallel.cuts has 1 layers and there are 3 stages; write 2, one for each stage after "
                      "the first"));
  EXPECT_NO_THROW(placed(Mode::GPipe, "0:0.0:1.0:2", [](Job& job) { job.parallel.cuts = {"layer2", "layer3"}; })());
}

TEST(ValidateParallel, VersionsBelongToSspOnePerStage) {
  const auto with_versions = [](Mode mode, std::vector<int> versions) {
    return placed(mode, "0:0.0:1", [=](Job& job) { job.parallel.versions = versions; });
  };
  EXPECT_NO_THROW(with_versions(Mode::Ssp, {3, 1})());
  EXPECT_THAT(with_versions(Mode::PipeDream, {2, 1}),
              refuses("job.yaml: parallel.versions are only for parallel.mode: ssp; remove them or write "
                      "parallel.mode: ssp"));
  EXPECT_THAT(with_versions(Mode::Ssp, {2}),
              refuses("job.yaml: parallel.versions has 1 numbers and there are 2 stages; write one for each"));
  EXPECT_THAT(with_versions(Mode::Ssp, {2, 0}), refuses("job.yaml: parallel.versions is 0; it must be at least 1"));
}

TEST(ValidateParallel, AsynchronousModesHaveOneMicrobatch) {
  const auto with_parts = [](Mode mode) {
    return placed(mode, "0:0.0:1", [](Job& job) { job.parallel.microbatches = 4; });
  };
  EXPECT_THAT(
      with_parts(Mode::PipeDream),
      refuses("job.yaml: parallel.mode is pipedream and parallel.microbatches 4; asynchronous modes update once "
              "per minibatch: write parallel.microbatches: 1"));
  EXPECT_THAT(with_parts(Mode::Ssp), refuses(HasSubstr("parallel.mode is ssp and parallel.microbatches 4")));
  EXPECT_NO_THROW(with_parts(Mode::GPipe)());
}

TEST(ValidateParallel, SspSplitsABatch) {
  EXPECT_THAT(placed(Mode::Ssp, "0:0-6.0:7", [](Job& job) { job.parallel.replicas = Replicas::RoundRobin; }),
              refuses("job.yaml: parallel.mode is ssp and parallel.replicas round_robin; ssp splits a batch over the "
                      "replicas of a stage: write parallel.replicas: split"));
}

TEST(ValidateParallel, EveryReplicaHasARowOfASplitMicrobatch) {
  const auto with_batch = [](int64_t batch, int parts) {
    return placed(Mode::OneFOneB, "0:0.0:1-7", [=](Job& job) {
      job.batch = batch;
      job.parallel.microbatches = parts;
    });
  };
  EXPECT_THAT(with_batch(16, 4), refuses("job.yaml: a micro-batch has 16 / 4 = 4 rows (batch / parallel.microbatches) "
                                         "and stage 1 has 7 replicas, each with at least one: write batch: 28 or more, "
                                         "or parallel.microbatches: 2 or fewer"));
  EXPECT_THAT(with_batch(4, 1), refuses(testing::EndsWith("write batch: 7 or more")));
  EXPECT_NO_THROW(with_batch(28, 4)());
}

TEST(ValidateParallel, RoundRobinSharesMicrobatchesEquallyInSynchronousModes) {
  const auto in_turn = [](Mode mode, const std::string& placement, int parts) {
    return placed(mode, placement, [=](Job& job) {
      job.batch = 48;
      job.parallel.replicas = Replicas::RoundRobin;
      job.parallel.microbatches = parts;
    });
  };
  EXPECT_THAT(in_turn(Mode::OneFOneB, "0:0-2.0:3-4", 4),
              refuses("job.yaml: parallel.microbatches is 4 and the 3 replicas of stage 0 take whole ones in turn "
                      "(round_robin), equally many each: write parallel.microbatches: 6, or parallel.replicas: split"));
  EXPECT_THAT(in_turn(Mode::GPipe, "0:0.0:1-4", 2), refuses(HasSubstr("write parallel.microbatches: 4")));
  EXPECT_THAT(in_turn(Mode::Dp, "0:0-3", 1), refuses(HasSubstr("the 4 replicas of stage 0")));
  EXPECT_NO_THROW(in_turn(Mode::OneFOneB, "0:0-2.0:3-4", 12)());
  EXPECT_NO_THROW(in_turn(Mode::PipeDream, "0:0-2.0:3-4", 1)());
}

TEST(ValidateParallel, AheadIsOneForEveryStage) {
  EXPECT_NO_THROW(placed(Mode::Ssp, "0:0.0:1", [](Job& job) { job.parallel.ahead = {0, 0}; })());
  EXPECT_THAT(placed(Mode::Ssp, "0:0.0:1", [](Job& job) { job.parallel.ahead = {0}; }),
              refuses("job.yaml: parallel.ahead has 1 numbers and there are 2 stages; write one for each"));
}

TEST(ValidateParallel, SharesAreOneForEveryReplica) {
  auto shared = [](const std::string& placement, const std::string& shares) {
    return placed(Mode::Ssp, placement, [=](Job& job) { job.parallel.shares = shares; });
  };
  EXPECT_NO_THROW(shared("0:0-1.0:2", "5:3.1")());
  EXPECT_THAT(shared("0:0-1.0:2", "5:3"),
              refuses("job.yaml: parallel.shares 5:3 are of 1 stages and there are 2; write "
                      "them for each, separated by dots"));
  EXPECT_THAT(shared("0:0-1.0:2", "5:3:1.1"), refuses("job.yaml: parallel.shares 5:3:1.1 has 3 for stage 0, which has "
                                                      "2 replicas; write one for each"));
  EXPECT_THAT(placed(Mode::Dp, "", [](Job& job) { job.parallel.shares = "5:3"; }),
              refuses("job.yaml: parallel.shares 5:3 need to know the replicas; write parallel.placement, e.g. 0:0-1"));
  EXPECT_THAT(placed(Mode::PipeDream, "0:0-1",
                     [](Job& job) {
                       job.parallel.shares = "5:3";
                       job.parallel.replicas = Replicas::RoundRobin;
                     }),
              refuses(HasSubstr("remove the shares or write parallel.replicas: split")));
}

}  // namespace
}  // namespace millrace::job
