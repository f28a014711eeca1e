// A run that is killed at random moments and gone on with ends as one that never was.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <random>

#include "cli/checkpoint_runner.h"
#include "data/image/test_pictures.h"
#include "millrace/data/image/jpeg.h"

namespace millrace::cli {
namespace {

using namespace std::chrono_literals;

class KilledTest : public CheckpointTest {
 protected:
  // At any moment: while computing, summing, writing or renaming.
  void kill_and_go_on(std::vector<std::string> sets, int most_kills) {
    sets.insert(sets.end(), {"checkpoint.every=2 steps", "checkpoint.keep=2"});
    ASSERT_EQ(train("whole", sets).exit_code, 0);
    const double whole_s = json("whole/summary.json").at("step_ms").at("p50").get<double>() * 24e-3;
    std::mt19937 random(std::random_device{}());
    std::vector<std::string> begin{"train", "job.yaml", "--out", "run", "--overwrite", "--set", kSteps};
    for (const std::string& set : sets) begin.insert(begin.end(), {"--set", set});
    bool done = false;
    for (int kills = 0; kills < most_kills && !done; ++kills) {
      const bool has_one = exists("run/checkpoints") && !std::filesystem::is_empty(path("run/checkpoints")) &&
                           run({"checkpoint", "inspect", "run"}).exit_code == 0;
      const auto process =
          start_program(MILLRACE_BINARY, has_one ? std::vector<std::string>{"train", "--resume", "run"} : begin);
      // From before its first step to about a third of the run.
      std::this_thread::sleep_for(
          std::chrono::duration<double>(0.03 + std::uniform_real_distribution<double>(0, 0.05 + whole_s / 3)(random)));
      ::kill(process->pid(), SIGKILL);
      const Outcome outcome = finish(*process);
      ASSERT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 128 + SIGKILL) << outcome.err;
      done = exists("run/summary.json");  // the last file
      EXPECT_TRUE(done || outcome.exit_code != 0);
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

class Killed : public KilledTest, public testing::WithParamInterface<Mode> {};

TEST_P(Killed, AndGoneOnWithIsAsNeverInterrupted) { kill_and_go_on(GetParam().sets, 7); }

INSTANTIATE_TEST_SUITE_P(Modes, Killed, testing::ValuesIn(modes()), [](const auto& mode) { return mode.param.name; });

// While it writes its last files: the next start writes them, also where an earlier end had left some.
TEST_F(KilledTest, BetweenItsLastStepAndItsLastFile) {
  const std::vector<std::string> sets{"checkpoint.every=10 steps"};
  ASSERT_EQ(train("whole", sets).exit_code, 0);
  ASSERT_EQ(run({"train", "job.yaml", "--out", "run"}, {"checkpoint.every=10 steps", "steps=12"}).exit_code, 0);
  std::filesystem::remove(path("run/trace.json"));
  ASSERT_EQ(::mkfifo(path("run/trace.json").c_str(), 0600), 0);  // it waits here for a reader
  const auto process = start_program(MILLRACE_BINARY, {"train", "--resume", "run", "--set", kSteps});
  for (int i = 0; i < 20000 && weights("run") != weights("whole"); ++i) std::this_thread::sleep_for(5ms);
  write("run/.model.safetensors.millrace-tmp7", "half");
  ::kill(process->pid(), SIGKILL);
  ASSERT_EQ(finish(*process).exit_code, 128 + SIGKILL);
  EXPECT_FALSE(exists("run/summary.json")) << "of the training before";
  std::filesystem::remove(path("run/trace.json"));
  const Outcome rest = run({"train", "--resume", "run"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(json("run/summary.json").at("steps"), 24);
  EXPECT_TRUE(exists("run/trace.json"));
  EXPECT_FALSE(exists("run/.model.safetensors.millrace-tmp7"));
  EXPECT_THAT(refusal({"train", "--resume", "run"}), testing::HasSubstr("nothing is left to do"));
}

class KilledWithPictures : public KilledTest {
 protected:
  // Records of pictures that are cropped and mirrored at random, loaded ahead by threads.
  void SetUp() override {
    for (int i = 0; i < 26; ++i) {
      const auto bytes = data::encode_jpeg(data::test_picture(40 + i % 7, 36, 3, static_cast<uint64_t>(i)), 90);
      const std::string folder = "pictures/class" + std::to_string(i % 3);
      std::filesystem::create_directories(path(folder));
      write(folder + "/" + std::to_string(i) + ".jpg", {bytes.begin(), bytes.end()});
    }
    ASSERT_EQ(run({"convert", "pictures", "set", "--to", "ofrecord", "--parts", "3"}).exit_code, 0);
    write("job.yaml", R"(name: pictures
batch: 8
threads: 1
seed: 5
device: reference
model: {name: alexnet_small, classes: 3, image_size: 24, dropout: 0.5}
data:
  kind: ofrecord
  train: set
  threads: 2
  train_transform: {kind: random_resized_crop, mirror: 0.5}
optimizer: {lr: 0.05}
)");
  }
};

TEST_F(KilledWithPictures, AndGoneOnWithDrawsTheSameCropsAndMirrors) {
  ASSERT_NO_FATAL_FAILURE(kill_and_go_on({"parallel.mode=ssp", "parallel.placement=0:0-1.0:2"}, 5));
  // What is drawn matters, or the above would hold without it.
  ASSERT_EQ(
      train("plain", {"parallel.mode=ssp", "parallel.placement=0:0-1.0:2", "data.train_transform.mirror=0"}).exit_code,
      0);
  EXPECT_FALSE(weights("plain") == weights("whole"));
}

}  // namespace
}  // namespace millrace::cli
