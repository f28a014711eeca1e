// One process per worker computes what threads of one process compute, bit for bit, and several processes speak with
// one voice.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "cli/mpi_runner.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

struct Spread {
  std::string name;
  int workers;
  std::vector<std::string> sets;
  bool has_bits_of_one_worker = false;  // no replicas, no staleness
};

std::vector<std::string> pipeline(const std::string& mode, const std::string& placement, int steps = 6) {
  return {"parallel.mode=" + mode, "parallel.placement=" + placement, "parallel.microbatches=4",
          "steps=" + std::to_string(steps)};
}

// To the last stage alone learning.
std::vector<std::string> freezing() {
  std::vector<std::string> sets = pipeline("1f1b", "0:0.0:1.0:2", 20);
  for (const char* set : {"elastic.freeze=gradient", "elastic.alpha=0.9", "elastic.every=4 steps"}) {
    sets.emplace_back(set);
  }
  return sets;
}

// Replicas that share what they keep, and give each other what each has not met.
std::vector<std::string> keeping() {
  return {"parallel.placement=0:0-1", "steps=24", "elastic.freeze=schedule", "elastic.alpha=0.6", "elastic.cache=on"};
}

const std::vector<Spread> kSpreads{
    {"OneFOneB2", 2, pipeline("1f1b", "0:0.0:1", 50), true},
    {"OneFOneB3", 3, pipeline("1f1b", "0:0.0:1.0:2"), true},
    {"OneFOneB4", 4, pipeline("1f1b", "0:0.0:1.0:2.0:3"), true},
    {"GPipe2", 2, pipeline("gpipe", "0:0.0:1"), true},
    {"Dp2", 2, {"parallel.placement=0:0-1"}},
    {"Dp3", 3, {"parallel.placement=0:0-2"}},
    {"OneFOneBReplicas", 3, pipeline("1f1b", "0:0-1.0:2")},
    {"PipeDream", 3, {"parallel.mode=pipedream", "parallel.placement=0:0-1.0:2", "parallel.replicas=round_robin"}},
    {"Ssp3", 3, {"parallel.mode=ssp", "parallel.placement=0:0.0:1.0:2"}},
    {"Freezing", 3, freezing(), true},
    {"Keeping", 2, keeping()},
};

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class SameBits : public MpiTest, public testing::WithParamInterface<Spread> {
 protected:
  // What metrics.jsonl says, but for the time it took.
  std::vector<nlohmann::json> metrics(const std::string& run_directory) const {
    std::vector<nlohmann::json> records;
    for (const std::string& line : lines_of(read(run_directory + "/metrics.jsonl"))) {
      records.push_back(nlohmann::json::parse(line));
      records.back().erase("seconds");
    }
    return records;
  }
};

TEST_P(SameBits, AsThreadsOfOneProcess) {
  const Spread& spread = GetParam();
  const auto arguments = [](const std::string& out) {
    return std::vector<std::string>{"train", "job.yaml", "--out", out};
  };
  const Outcome threads = run(arguments("threads"), spread.sets);
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = run_mpi(spread.workers, arguments("processes"), spread.sets);
  ASSERT_EQ(processes.exit_code, 0) << processes.err;
  const std::string model = read("threads/model.safetensors");
  EXPECT_TRUE(read("processes/model.safetensors") == model);

  // The numbers that were reported on the way, too; seconds are their own.
  const auto of_threads = metrics("threads"), of_processes = metrics("processes");
  EXPECT_EQ(of_processes, of_threads);
  EXPECT_TRUE(of_processes.back().contains("test_loss"));

  EXPECT_THAT(lines_of(processes.out), SizeIs(lines_of(threads.out).size())) << processes.out;
  EXPECT_THAT(processes.err, HasSubstr("train epoch 1 step"));
  const std::vector<std::string> progress = lines_of(processes.err);
  EXPECT_THAT(std::set(progress.begin(), progress.end()), SizeIs(progress.size())) << processes.err;

  if (!spread.has_bits_of_one_worker) return;
  // All but mode and placement.
  const Outcome one = run(arguments("one"), {spread.sets.begin() + 2, spread.sets.end()});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_TRUE(read("one/model.safetensors") == model);
}

INSTANTIATE_TEST_SUITE_P(Mpi, SameBits, testing::ValuesIn(kSpreads),
                         [](const auto& param) { return param.param.name; });

TEST_F(MpiTest, OnlyProcessZeroWrites) {
  const Outcome outcome = run_mpi(2, {"train", "job.yaml", "--out", "run", "--json", "summary.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read("summary.json"), read("run/summary.json"));
  EXPECT_EQ(json("summary.json").at("steps"), 6);
  EXPECT_THAT(steps("run"), SizeIs(6));
  EXPECT_EQ(count(outcome.out, "test accuracy"), 1) << outcome.out;
  EXPECT_THAT(failures_in(outcome.err), SizeIs(0));
}

TEST_F(MpiTest, AllProcessesTellOfAllTheirTrainings) {
  const Outcome outcome = run_mpi(2, {"train", "job.yaml", "--out", "run"}, keeping());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto trace = json("run/trace.json");
  std::map<int, std::set<int>> trained;  // micro-batches by worker
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "F") trained[event.at("tid")].insert(event.at("args").at("micro-batch").get<int>());
  }
  ASSERT_THAT(trained, SizeIs(2));
  for (const auto& [worker, steps] : trained) EXPECT_THAT(steps, SizeIs(24)) << worker;
  const auto course = json("run/elastic.json");
  const auto& stretches = course.at("stretches");
  ASSERT_GT(stretches.size(), 1u);
  for (size_t i = 1; i < stretches.size(); ++i) EXPECT_NE(stretches[i].at("cache_verdict"), "") << i;
}

// Without a placement there are as many replicas as processes.
TEST_F(MpiTest, ProcessesWithoutAPlacementAreReplicas) {
  ASSERT_EQ(run_mpi(3, {"train", "job.yaml", "--out", "run"}).exit_code, 0);
  ASSERT_EQ(run({"train", "job.yaml", "--out", "placed"}, {"parallel.placement=0:0-2"}).exit_code, 0);
  EXPECT_TRUE(read("run/model.safetensors") == read("placed/model.safetensors"));
}

class MpiMistakes : public MpiTest {
 protected:
  // The one line in which all processes answer.
  std::string refusal(int processes, const std::vector<std::string>& arguments,
                      const std::vector<std::string>& sets = {}) const {
    const auto before = files();
    const Outcome outcome = run_mpi(processes, arguments, sets);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(files(), before);
    const std::vector<std::string> lines = failures_in(outcome.err);
    EXPECT_THAT(lines, SizeIs(1)) << outcome.err;
    return lines.empty() ? "" : lines[0];
  }
  std::string refused_set(int processes, const std::string& set) const {
    return refusal(processes, {"train", "job.yaml", "--out", "run"}, {set});
  }
};

TEST_F(MpiMistakes, AnotherNumberOfProcessesThanDevices) {
  EXPECT_EQ(refusal(3, {"train", "job.yaml", "--out", "run"}, {"parallel.mode=1f1b", "parallel.placement=0:0.0:1"}),
            "millrace: parallel.placement names 2 devices and 3 processes were started; start 2 (mpirun -n 2) or one");
  EXPECT_EQ(refused_set(2, "parallel.placement=0:0-2"),
            "millrace: parallel.placement names 3 devices and 2 processes were started; start 3 (mpirun -n 3) or one");
}

TEST_F(MpiMistakes, BadPlacements) {
  EXPECT_THAT(refused_set(2, "parallel.placement=0:0.0"), HasSubstr("parallel.placement"));
  EXPECT_THAT(refused_set(2, "parallel.placement=0:0.0:1"), HasSubstr("parallel.mode is dp and there are 2 stages"));
  EXPECT_THAT(refused_set(2, "parallel.mode=1f1b"), HasSubstr("parallel.placement empty"));
}

TEST_F(MpiMistakes, BadJobFiles) {
  EXPECT_THAT(refusal(2, {"train", "no.yaml"}), HasSubstr("no.yaml"));
  EXPECT_THAT(refused_set(2, "bacth=4"), HasSubstr("batch"));
  write("job.yaml", small_job() + "model: [\n");
  EXPECT_THAT(refusal(3, {"train", "job.yaml"}), HasSubstr("job.yaml:"));
}

// Found by every process alike, after the job was read.
TEST_F(MpiMistakes, BadCuts) {
  EXPECT_THAT(refusal(2, {"train", "job.yaml", "--out", "run"},
                      {"parallel.mode=1f1b", "parallel.placement=0:0.0:1", "parallel.cuts=[feature]"}),
              HasSubstr("parallel.cuts"));
}

TEST_F(MpiMistakes, BadOutputsAndOptions) {
  write("file", "");
  EXPECT_THAT(refusal(2, {"train", "job.yaml", "--out", "file"}), HasSubstr("not a directory"));
  EXPECT_THAT(refusal(3, {"train", "job.yaml", "--bogus"}), HasSubstr("--bogus"));
  EXPECT_THAT(refusal(2, {}), HasSubstr("a command is missing"));
}

}  // namespace
}  // namespace millrace::cli
