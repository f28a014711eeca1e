// Checkpoints as a user meets them: saved while training, gone on from, looked into, damaged.
#include <gmock/gmock.h>

#include <random>

#include "cli/mpi_runner.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A few milliseconds a step.
constexpr const char* kSteps = "steps=24";

class CheckpointTest : public CommandTest {
 protected:
  void SetUp() override { write("job.yaml", small_job()); }

  Outcome train(const std::string& out, std::vector<std::string> sets) {
    sets.emplace_back(kSteps);
    return run({"train", "job.yaml", "--out", out}, sets);
  }
  std::string weights(const std::string& out) const { return read(out + "/model.safetensors"); }

  // Steps on record, in order, each once.
  void expect_steps(const std::string& out, int64_t count) {
    std::vector<int64_t> found;
    for (const std::string& line : lines_of(read(out + "/metrics.jsonl"))) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("step")) found.push_back(record["step"]);
    }
    ASSERT_EQ(static_cast<int64_t>(found.size()), count);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(found[static_cast<size_t>(i)], i);
  }
};

struct Mode {
  const char* name;
  std::vector<std::string> sets;
};

const std::vector<Mode>& modes() {
  static const std::vector<Mode> all = {
      {"One", {}},
      {"Dp2", {"parallel.placement=0:0-1"}},
      {"Pp2", {"parallel.mode=1f1b", "parallel.microbatches=4", "parallel.placement=0:0.0:1"}},
      {"GPipe3", {"parallel.mode=gpipe", "parallel.microbatches=4", "parallel.placement=0:0.0:1.0:2"}},
      {"Pp2Dp2", {"parallel.mode=1f1b", "parallel.microbatches=2", "parallel.placement=0:0-1.0:2-3"}},
      {"Ssp21", {"parallel.mode=ssp", "parallel.placement=0:0-1.0:2"}},
      {"Pipedream3", {"parallel.mode=pipedream", "parallel.placement=0:0.0:1.0:2"}},
      {"InTurn", {"parallel.mode=pipedream", "parallel.placement=0:0-1.0:2", "parallel.replicas=round_robin"}}};
  return all;
}

class Killed : public CheckpointTest, public testing::WithParamInterface<Mode> {};

// At any moment: while computing, summing, writing or renaming. Seven times in each of eight modes.
TEST_P(Killed, AndGoneOnWithIsAsNeverInterrupted) {
  std::vector<std::string> sets = GetParam().sets;
  sets.insert(sets.end(), {"checkpoint.every=2 steps", "checkpoint.keep=2"});
  ASSERT_EQ(train("whole", sets).exit_code, 0);
  const double whole_s = json("whole/summary.json").at("step_ms").at("p50").get<double>() * 24e-3;
  std::mt19937 random(std::random_device{}());
  std::vector<std::string> begin{"train", "job.yaml", "--out", "run", "--overwrite", "--set", kSteps};
  for (const std::string& set : sets) begin.insert(begin.end(), {"--set", set});
  bool done = false;
  for (int kills = 0; kills < 7 && !done; ++kills) {
    const bool has_one = exists("run/checkpoints") && !std::filesystem::is_empty(path("run/checkpoints")) &&
                         run({"checkpoint", "inspect", "run"}).exit_code == 0;
    const auto process =
        start_program(MILLRACE_BINARY, has_one ? std::vector<std::string>{"train", "--resume", "run"} : begin);
    // From before its first step to about a third of the run.
    std::this_thread::sleep_for(
        std::chrono::duration<double>(0.03 + std::uniform_real_distribution<double>(0, 0.05 + whole_s / 3)(random)));
    ::kill(process->pid(), SIGKILL);
    const Outcome outcome = finish(*process);
    done = outcome.exit_code == 0;
    ASSERT_TRUE(done || outcome.exit_code == 128 + SIGKILL) << outcome.err;
    if (exists("run/checkpoints") && !done) {
      for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints"))) {
        const std::string name = entry.path().filename();
        if (!name.starts_with("step-")) continue;  // half written, with a dot
        EXPECT_EQ(run({"checkpoint", "verify", "run/checkpoints/" + name}).exit_code, 0) << name;
      }
    }
  }
  if (!done) {
    const bool has_one = exists("run/checkpoints") && run({"checkpoint", "inspect", "run"}).exit_code == 0;
    const Outcome rest = has_one ? run({"train", "--resume", "run"}) : run(begin);
    ASSERT_EQ(rest.exit_code, 0) << rest.err;
  }
  EXPECT_TRUE(weights("run") == weights("whole"));
  expect_steps("run", 24);
  for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints"))) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path() << " is left";
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Killed, testing::ValuesIn(modes()), [](const auto& mode) { return mode.param.name; });

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
