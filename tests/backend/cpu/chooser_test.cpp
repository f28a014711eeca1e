#include "millrace/backend/cpu/chooser.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/runtime/session.h"

namespace millrace::backend::cpu {
namespace {

// How the choice between "slow" and "fast" for "work" is remembered.
constexpr const char* kQuestion = "work of slow fast";

class ChooserTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("millrace_chooser_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    file_ = folder_ / "cache" / "choices.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Kernel kernel(const std::string& name, int milliseconds) {
    return {name, 128, [=, this](const Bindings& bindings) -> Task {
              EXPECT_NE(bindings.scratch, nullptr);
              EXPECT_EQ(bindings.reads.size(), 2u);
              EXPECT_EQ(bindings.writes.size(), 1u);
              return [=, this](const StepContext&) {
                ++runs_;
                std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
              };
            }};
  }
  // Of two kernels for `work`, "slow" and "fast".
  std::string choose(Chooser& chooser, const std::string& work = "work") {
    return chooser.choose(work, {kernel("slow", 8), kernel("fast", 0)}, {{64, 64}, {64}}).algorithm;
  }
  nlohmann::json saved() const { return nlohmann::json::parse(std::ifstream(file_)); }
  void write(const std::string& text) {
    std::filesystem::create_directories(file_.parent_path());
    std::ofstream(file_) << text;
  }

  std::filesystem::path folder_, file_;
  std::atomic<int> runs_ = 0;
};

TEST_F(ChooserTest, TakesTheFasterInEitherOrder) {
  Chooser chooser("", {});
  EXPECT_EQ(choose(chooser), "fast");
  EXPECT_EQ(chooser.choose("other", {kernel("fast", 0), kernel("slow", 8)}, {{64, 64}, {64}}).algorithm, "fast");
}

TEST_F(ChooserTest, RunsNothingWhenThereIsNoChoice) {
  Chooser chooser(file_, {});
  EXPECT_EQ(chooser.choose("work", {kernel("only", 0)}, {{64, 64}, {64}}).algorithm, "only");
  EXPECT_EQ(runs_, 0);
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(ChooserTest, MeasuresTheSameWorkOnce) {
  Chooser chooser("", {});
  choose(chooser);
  const int after_first = runs_;
  EXPECT_EQ(choose(chooser), "fast");
  EXPECT_EQ(runs_, after_first);
  choose(chooser, "other work");
  EXPECT_GT(runs_, after_first);
}

TEST_F(ChooserTest, AChoiceAmongOthersIsAnotherChoice) {
  Chooser chooser(file_, {});
  choose(chooser);
  EXPECT_EQ(chooser.choose("work", {kernel("slow", 8), kernel("slower", 16)}, {{64, 64}, {64}}).algorithm, "slow");
  EXPECT_EQ(choose(chooser), "fast") << "the narrower choice replaced the wider";
  EXPECT_EQ(saved().size(), 2u);
}

TEST_F(ChooserTest, WorkersThatPrepareTogetherMeasureOnceAndAgree) {
  std::atomic<int> measured{0};
  std::string chosen[2];
  auto prepare = [&](int worker) {
    Chooser chooser(file_, [&](const std::string&) { ++measured; });
    Kernel slow = kernel("slow", 8), fast = kernel("fast", 0);
    chosen[worker] = chooser.choose("work", {slow, fast}, {{64, 64}, {64}}).algorithm;
  };
  std::thread other(prepare, 1);
  prepare(0);
  other.join();
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(chosen[0], chosen[1]);
}

TEST_F(ChooserTest, TellsWhatItMeasures) {
  std::vector<std::string> told;
  Chooser chooser("", [&](const std::string& work) { told.push_back(work); });
  choose(chooser);
  choose(chooser);
  choose(chooser, "other");
  EXPECT_EQ(told, (std::vector<std::string>{"work", "other"}));
}

TEST_F(ChooserTest, RemembersChoicesInItsFile) {
  Chooser first(file_, {});
  choose(first);
  EXPECT_EQ(saved(), nlohmann::json({{kQuestion, "fast"}}));
  for (const auto& entry : std::filesystem::directory_iterator(file_.parent_path())) {
    EXPECT_EQ(entry.path(), file_) << "a temporary file was left";
  }
  runs_ = 0;
  Chooser second(file_, {});
  EXPECT_EQ(choose(second), "fast");
  EXPECT_EQ(runs_, 0);
}

TEST_F(ChooserTest, ARememberedChoiceStandsEvenIfItIsTheSlower) {
  write(nlohmann::json({{kQuestion, "slow"}}).dump());
  Chooser chooser(file_, {});
  EXPECT_EQ(choose(chooser), "slow");
  EXPECT_EQ(runs_, 0);
}

TEST_F(ChooserTest, KeepsWhatAnotherProcessWroteMeanwhile) {
  Chooser ours(file_, {});
  write(nlohmann::json({{"theirs", "fast"}, {kQuestion, "slow"}}).dump());
  choose(ours);
  EXPECT_EQ(saved().at("theirs"), "fast");
  EXPECT_EQ(saved().at(kQuestion), "slow");
}

TEST_F(ChooserTest, MeasuresAgainWhenTheAlgorithmIsGone) {
  write(nlohmann::json({{kQuestion, "abolished"}}).dump());
  Chooser chooser(file_, {});
  EXPECT_EQ(choose(chooser), "fast");
}

TEST_F(ChooserTest, ADamagedFileIsMeasuredAgainAndReplaced) {
  for (const char* damaged :
       {"", "{", "[1, 2]", "{\"work of slow fast\": 3}", "\xff\xfe", "{\"work of slow fast\": \"fa"}) {
    write(damaged);
    Chooser chooser(file_, {});
    EXPECT_EQ(choose(chooser), "fast") << damaged;
    EXPECT_EQ(saved(), nlohmann::json({{kQuestion, "fast"}})) << damaged;
  }
}

TEST_F(ChooserTest, AFolderThatCannotBeWrittenIsNoReasonToStop) {
  std::ofstream(folder_ / "a_file") << "not a folder";
  Chooser chooser(folder_ / "a_file" / "choices.json", {});
  EXPECT_EQ(choose(chooser), "fast");
  EXPECT_EQ(choose(chooser), "fast");
}

// What the file is for: two algorithms round differently, so a run repeats only if its choices do.
TEST_F(ChooserTest, TwoSessionsWithOneFileAreBitEqual) {
  const job::Model model{.name = "resnet_small", .classes = 10, .image_size = 16, .dropout = 0};
  const graph::Graph graph = graph::fuse(model::build(model, 4, 0.0));
  auto train = [&] {
    const auto backend = make_cpu_backend({.threads = 2, .choices_file = file_}, {.momentum = 0.9f});
    runtime::Session session(graph, *backend, {.evaluates = false});
    session.load(state::initial_state(graph, 1));
    const auto elements = static_cast<size_t>(graph.values[graph.features].shape.elements());
    for (size_t i = 0; i < elements; ++i) static_cast<float*>(session.features())[i] = static_cast<float>(i % 23) / 11 - 1;
    for (int i = 0; i < 4; ++i) session.labels()[i] = i;
    for (int step = 0; step < 3; ++step) session.train_step(step, 4, 0.05, [](int) { return 4; });
    state::State state;
    session.store(state);
    std::string algorithms;
    for (const runtime::NodeTime& node : session.node_times()) algorithms += node.algorithm + "\n";
    return std::pair(algorithms, state);
  };
  const auto [first_algorithms, first] = train();
  const auto choices = saved();
  EXPECT_GT(choices.size(), 3u);
  const auto [second_algorithms, second] = train();
  EXPECT_EQ(first_algorithms, second_algorithms);
  EXPECT_EQ(saved(), choices);
  EXPECT_TRUE(first == second);
}

}  // namespace
}  // namespace millrace::backend::cpu
