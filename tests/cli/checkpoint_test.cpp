// Checkpoints as a user meets them: saved while training, gone on from, looked into, damaged.
#include <gmock/gmock.h>

#include "cli/checkpoint_runner.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(CheckpointTest, IsGoneOnFromOnAnotherPlanAndInAnotherPlace) {
  ASSERT_EQ(train("run", {"checkpoint.every=10 steps"}).exit_code, 0);
  const Outcome rest = run({"train", "--resume", "run/checkpoints/step-00000010", "--out", "other"},
                           {"parallel.mode=1f1b", "parallel.microbatches=4", "parallel.placement=0:0.0:1"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, AllOf(HasSubstr("going on from run/checkpoints/step-00000010"),
                              HasSubstr("parallel.mode was dp, is now 1f1b"), HasSubstr("went on from")));
  const auto summary = json("other/summary.json");
  EXPECT_EQ(summary.at("first_step"), 10);
  EXPECT_EQ(summary.at("steps"), 24);
  EXPECT_EQ(summary.at("samples"), json("run/summary.json").at("samples"));
  EXPECT_TRUE(exists("run/checkpoints/step-00000020"));
}

// It stops where it had leave to go, which is the end of an epoch as long as steps are short: where it is evaluated.
TEST_F(CheckpointTest, StoppedAgainAndAgainHasEveryEvaluationOnce) {
  const std::vector<std::string> sets{"steps=60", "model.image_size=17", "checkpoint.best=loss"};
  ASSERT_EQ(run({"train", "job.yaml", "--out", "whole"}, sets).exit_code, 0);
  std::vector<std::string> arguments{"train", "job.yaml", "--out", "run"};
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  int stops = 0;
  for (const size_t steps : {6, 20, 40}) {
    const auto process = start_program(MILLRACE_BINARY, arguments);
    const auto has_come = [&] {
      return exists("run/metrics.jsonl") && lines_of(read("run/metrics.jsonl")).size() >= steps;
    };
    for (int wait = 0; wait < 60'000 && !has_come(); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(process->pid(), SIGTERM);
    const Outcome outcome = finish(*process);
    ASSERT_TRUE(outcome.exit_code == 75 || outcome.exit_code == 0) << outcome.err;
    if (outcome.exit_code == 0) break;
    ++stops;
    arguments = {"train", "--resume", "run"};
  }
  ASSERT_GT(stops, 0) << "it was at its end before it could be stopped";
  if (!exists("run/model.safetensors")) {
    ASSERT_EQ(run(arguments).exit_code, 0);
  }
  const auto evaluations = [&](const std::string& out) {
    std::vector<std::string> lines = lines_of(read(out + "/metrics.jsonl"));
    std::erase_if(lines, [](const std::string& line) { return line.find("test_loss") == std::string::npos; });
    return lines;
  };
  EXPECT_EQ(evaluations("run"), evaluations("whole"));
  EXPECT_EQ(evaluations("run").size(), 15u);
  expect_steps("run", 60);
  const auto best = [&](const std::string& out) {
    for (const auto& entry : std::filesystem::directory_iterator(path(out + "/checkpoints"))) {
      if (entry.path().filename().string().starts_with("best-")) return entry.path().filename().string();
    }
    return std::string();
  };
  EXPECT_NE(best("whole"), "");
  EXPECT_EQ(best("run"), best("whole"));
  EXPECT_TRUE(weights("run") == weights("whole"));
}

// Ended after its last step and before its last file.
TEST_F(CheckpointTest, OfTheLastStepIsFinished) {
  ASSERT_EQ(train("run", {"checkpoint.every=10 steps"}).exit_code, 0);
  const std::string whole = weights("run");
  std::filesystem::remove(path("run/model.safetensors"));
  std::filesystem::remove(path("run/summary.json"));
  const Outcome rest = run({"train", "--resume", "run"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_TRUE(weights("run") == whole);
  EXPECT_EQ(json("run/summary.json").at("steps"), 24);
  expect_steps("run", 24);
}

TEST_F(CheckpointTest, WhatWouldBeAnotherTrainingIsRefused) {
  ASSERT_EQ(train("run", {"checkpoint.every=10 steps"}).exit_code, 0);
  EXPECT_THAT(refusal({"train", "--resume", "run"}), HasSubstr("is at step 24 of 24: nothing is left to do"));
  EXPECT_THAT(refusal({"train", "--resume", "run"}, {"batch=4", "steps=30"}),
              HasSubstr("was made with batch 8, not 4"));
  EXPECT_THAT(refusal({"train", "--resume", "run"}, {"model.name=vgg16", "steps=30"}),
              HasSubstr("model.name alexnet_small"));
  EXPECT_THAT(refusal({"train", "--resume", "run"}, {"data.train_samples=27", "steps=30"}),
              HasSubstr("data.train_samples 26, not 27"));
  EXPECT_THAT(refusal({"train", "--resume", "run/checkpoints/step-00000010"}),
              AllOf(HasSubstr("step-00000020 is newer than step-00000010"), HasSubstr("--overwrite")));
  // What is refused for another reason costs no checkpoint.
  EXPECT_THAT(refusal({"train", "--resume", "run/checkpoints/step-00000010", "--overwrite"}, {"steps=5"}),
              HasSubstr("is at step 10 of 5"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "new", "--fallback"}), HasSubstr("write --resume RUN"));
  for (const char* option : {"--hang-after", "--probe-every", "--backoff", "--grace"}) {
    EXPECT_THAT(refusal({"train", "job.yaml", "--out", "new", option, "7"}), HasSubstr("write --restarts N"));
  }
  EXPECT_THAT(refusal({"train", "--resume", "nowhere"}), HasSubstr("nowhere"));
  EXPECT_THAT(refusal({"train"}), HasSubstr("JOB is missing"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "new"}, {"checkpoint.every=often"}),
              HasSubstr("\"often\" is no period"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "new"}, {"checkpoint.every=0 steps"}), HasSubstr("more than 0"));
}

TEST_F(CheckpointTest, ADamagedOneIsNamedAndPassedOverIfAllowed) {
  ASSERT_EQ(train("whole", {}).exit_code, 0);
  ASSERT_EQ(train("run", {"checkpoint.every=10 steps"}).exit_code, 0);
  std::filesystem::remove_all(path("run/checkpoints/step-00000024"));
  const std::string shard = "run/checkpoints/step-00000020/weights-0.safetensors";
  std::string bytes = read(shard);
  bytes[bytes.size() / 2] ^= 4;
  write(shard, bytes);
  const Outcome verified = run({"checkpoint", "verify", "run"});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out,
              AllOf(HasSubstr("step-00000010: good"), HasSubstr("step-00000020: weights-0.safetensors: ")));
  EXPECT_THAT(refusal({"train", "--resume", "run"}),
              AllOf(HasSubstr("weights-0.safetensors"), HasSubstr("--fallback"), HasSubstr("step-00000010")));
  const Outcome rest = run({"train", "--resume", "run", "--fallback"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("weights-0.safetensors"));
  EXPECT_TRUE(weights("run") == weights("whole"));
  EXPECT_TRUE(exists("run/checkpoints/damaged-step-00000020"));
  expect_steps("run", 24);
}

TEST_F(CheckpointTest, NewerOnesAreDroppedIfAllowed) {
  ASSERT_EQ(train("run", {"checkpoint.every=10 steps"}).exit_code, 0);
  const std::string whole = weights("run");
  ASSERT_EQ(run({"train", "--resume", "run/checkpoints/step-00000010", "--overwrite"}).exit_code, 0);
  EXPECT_TRUE(weights("run") == whole);
  expect_steps("run", 24);
}

TEST_F(CheckpointTest, CanBeComparedAndExported) {
  ASSERT_EQ(train("a", {"checkpoint.every=10 steps"}).exit_code, 0);
  ASSERT_EQ(train("b", {"checkpoint.every=10 steps", "parallel.placement=0:0", "threads=2"}).exit_code, 0);
  const Outcome same = run({"checkpoint", "diff", "a", "b"});
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("threads"));
  const Outcome other = run({"checkpoint", "diff", "a/checkpoints/step-00000010", "a"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.out, AllOf(HasSubstr("step"), HasSubstr("largest difference"), HasSubstr("classifier")));
  ASSERT_EQ(run({"checkpoint", "export", "a", "-o", "exported.safetensors"}).exit_code, 0);
  EXPECT_TRUE(read("exported.safetensors") == weights("a"));
  const Outcome seen = run({"checkpoint", "inspect", "a", "--json", "seen.json"});
  EXPECT_EQ(seen.exit_code, 0);
  EXPECT_EQ(json("seen.json").size(), 3u);
  EXPECT_EQ(json("seen.json")[0].at("step"), 10);
}

TEST_F(CheckpointTest, ADivergingRunGoesBackAndSaysSo) {
  const Outcome outcome = run({"train", "job.yaml", "--out", "run"},
                              {"steps=60", "optimizer.lr=3", "checkpoint.every=1 steps", "checkpoint.keep=50",
                               "on_divergence=rollback", "divergence.rollbacks=2"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("back to the state of step "), HasSubstr("allows no more than 2")));
  EXPECT_EQ(json("run/summary.json").at("rollbacks").size(), 2u);
}

class MpiCheckpoint : public MpiTest {
 protected:
  // By threads or processes, it is one state.
  void go_on(const std::vector<std::string>& sets, int processes) {
    ASSERT_EQ(run({"train", "job.yaml", "--out", "whole", "--overwrite"}, sets).exit_code, 0);
    ASSERT_EQ(run_mpi(processes, {"train", "job.yaml", "--out", "run", "--overwrite"}, sets).exit_code, 0);
    EXPECT_TRUE(read("run/model.safetensors") == read("whole/model.safetensors"));
    for (const bool by_threads : {true, false}) {
      const std::vector<std::string> arguments{"train", "--resume", "run/checkpoints/step-00000004",
                                               "--out", "rest",     "--overwrite"};
      const Outcome rest = by_threads ? run(arguments) : run_mpi(processes, arguments);
      ASSERT_EQ(rest.exit_code, 0) << rest.err;
      EXPECT_TRUE(read("rest/model.safetensors") == read("whole/model.safetensors")) << by_threads;
    }
  }
};

TEST_F(MpiCheckpoint, OfProcessesIsThatOfThreads) {
  go_on({"checkpoint.every=4 steps", "parallel.mode=1f1b", "parallel.microbatches=4", "parallel.placement=0:0.0:1"}, 2);
  go_on({"checkpoint.every=4 steps", "parallel.mode=ssp", "parallel.placement=0:0-1.0:2"}, 3);
}

TEST_F(MpiCheckpoint, AskedToEndAllSaveAndEnd) {
  const std::vector<std::string> sets{"parallel.mode=ssp", "parallel.placement=0:0.0:1", "data.test_samples=0"};
  std::vector<std::string> endless = sets;
  endless.emplace_back("steps=1000000");
  const auto job = start_mpi(2, {"train", "job.yaml", "--out", "run"}, endless);
  const auto trains = [&] { return exists("run/metrics.jsonl") && lines_of(read("run/metrics.jsonl")).size() > 5; };
  for (int wait = 0; wait < 10'000 && !trains(); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(job->pid(), SIGUSR1);  // mpirun passes it on
  const Outcome outcome = finish(*job);
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
  const auto step = json("run/summary.json").at("steps").get<int64_t>();
  const std::string total = "steps=" + std::to_string(step + 3);
  ASSERT_EQ(run_mpi(2, {"train", "--resume", "run", "--set", total}).exit_code, 0);
  std::vector<std::string> whole = sets;
  whole.push_back(total);
  ASSERT_EQ(run({"train", "job.yaml", "--out", "whole"}, whole).exit_code, 0);
  EXPECT_TRUE(read("run/model.safetensors") == read("whole/model.safetensors"));
}

}  // namespace
}  // namespace millrace::cli
