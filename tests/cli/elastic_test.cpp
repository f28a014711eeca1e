// A run whose layers freeze, as a user starts it.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "cli/command_runner.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kJob = R"(name: freezing
batch: 8
steps: 12
threads: 1
seed: 5
device: reference
model: {name: alexnet_small, classes: 10, image_size: 17}
data: {kind: generated, train_samples: 26, test_samples: 5}
elastic: {freeze: schedule, alpha: 0.4, every: 1 epoch}
)";

class ElasticCommand : public CommandTest {
 protected:
  void SetUp() override { write("job.yaml", kJob); }
};

TEST_F(ElasticCommand, LeavesWhatFrozeAsTextAndPicture) {
  const Outcome outcome = run({"train", "job.yaml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("interval 2 of the schedule"));
  const nlohmann::json course = json("run/elastic.json");
  EXPECT_EQ(course.at("layers"), 7);
  ASSERT_EQ(course.at("stretches").size(), 3u);
  EXPECT_EQ(course.at("transitions").size(), 2u);
  EXPECT_EQ(course["stretches"][0]["frozen"], 0);
  EXPECT_EQ(course["stretches"][1]["frozen"], 3);
  EXPECT_EQ(course["stretches"][2]["frozen"], 5);
  EXPECT_EQ(course["stretches"][2]["first_step"], 8);
  EXPECT_THAT(read("run/elastic.svg"), HasSubstr("freezing: what froze when"));
  // The report has the table of the run once more.
  const std::string table = outcome.out.substr(outcome.out.find("from step"));
  const Outcome reported = run({"report", "run"});
  EXPECT_EQ(reported.exit_code, 0) << reported.err;
  EXPECT_THAT(reported.out, HasSubstr(table));
  write("run/elastic.json", "{}");
  EXPECT_EQ(run({"report", "run"}).exit_code, 2);
}

TEST_F(ElasticCommand, TheTraceHoldsTheWholeRun) {
  ASSERT_EQ(run({"train", "job.yaml", "--out", "run"}, {"parallel.mode=1f1b", "parallel.placement=0:0.0:1"}).exit_code,
            0);
  std::map<int, std::set<int>> trained;  // by worker
  std::vector<int> frozen;
  int pauses = 0;
  const nlohmann::json trace = json("run/trace.json");
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const std::string name = event.at("name");
    if (name == "F") trained[event.at("tid")].insert(event.at("args").at("micro-batch").get<int>());
    if (name == "frozen layers") frozen.push_back(event.at("args").at("frozen layers"));
    pauses += name.starts_with("pause before step ");
  }
  ASSERT_EQ(trained.size(), 2u);
  for (const auto& [worker, steps] : trained) EXPECT_EQ(steps.size(), 12u) << "every step is there";
  EXPECT_EQ(frozen, (std::vector<int>{0, 0, 3, 3, 5, 5}));
  EXPECT_EQ(pauses, 2);
  EXPECT_EQ(json("run/summary.json").at("trace").at("spans_left_out"), 0);
}

TEST_F(ElasticCommand, ACacheOnDiskAndInHalfPrecisionAreUsedAndLeaveNothing) {
  const std::vector<std::string> cache = {"elastic.cache=on", "elastic.cache_gib=0", "elastic.cache_disk_gib=0.1",
                                          "elastic.cache_dir=scratch"};
  ASSERT_EQ(run({"train", "job.yaml", "--out", "plain"}).exit_code, 0);
  const Outcome kept = run({"train", "job.yaml", "--out", "kept"}, cache);
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_TRUE(read("kept/model.safetensors") == read("plain/model.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(path("scratch")));
  // Whether it was worth it is said once for each training whose layers stand still, and in the report again.
  const std::string verdict = "from step 4, what layers 1 to 3 make: ";
  EXPECT_THAT(kept.out, HasSubstr(verdict));
  EXPECT_THAT(kept.out, HasSubstr("from step 8, what layers 1 to 5 make: "));
  EXPECT_THAT(run({"report", "kept"}).out, HasSubstr(verdict));
  std::vector<std::string> half = cache;
  half.emplace_back("elastic.cache_precision=fp16");
  ASSERT_EQ(run({"train", "job.yaml", "--out", "half"}, half).exit_code, 0);
}

TEST_F(ElasticCommand, WhyNothingIsKeptIsSaid) {
  const Outcome small = run({"train", "job.yaml", "--out", "small"}, {"elastic.cache=on", "elastic.cache_gib=1e-5"});
  ASSERT_EQ(small.exit_code, 0) << small.err;
  EXPECT_THAT(small.out, HasSubstr("from step 4, what layers 1 to 3 make: not cached: 26 samples take "));
  EXPECT_THAT(small.out, HasSubstr("write a larger elastic.cache_gib or elastic.cache_disk_gib"));
  const Outcome again = run({"train", "job.yaml", "--out", "again"},
                            {"elastic.cache=on", "parallel.mode=1f1b", "parallel.placement=0:0.0:1",
                             "parallel.microbatches=2", "memory.recompute=stage"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("not cached: the 3 frozen layers end in more than one value, or in a stage that is "
                                   "computed again before its backward; write memory.recompute: block, or off"));
}

TEST_F(ElasticCommand, LayersThatNeverLearnedHaveAVerdictToo) {
  const Outcome outcome =
      run({"train", "job.yaml", "--out", "run"}, {"elastic.freeze=off", "model.frozen=3", "elastic.cache=on"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("from step 0, what layers 1 to 3 make: "));
  EXPECT_THAT(run({"report", "run"}).out, HasSubstr("from step 0, what layers 1 to 3 make: "));
}

// Freezing, pipeline, replicas and cache, alone and together: what runs has the loss of the run that only freezes.
TEST_F(ElasticCommand, AllSixteenCombinationsRunOrSayWhatTheyLack) {
  std::vector<double> losses;
  for (int bits = 0; bits < 16; ++bits) {
    const auto on = [bits](int bit) { return bits & bit ? "on" : "off"; };
    const std::vector<std::string> switches = {fmt::format("elastic.freeze={}", bits & 1 ? "schedule" : "off"),
                                               fmt::format("elastic.pipe={}", on(2)),
                                               fmt::format("elastic.dp={}", on(4)),
                                               fmt::format("elastic.cache={}", on(8)),
                                               "parallel.mode=1f1b",
                                               "parallel.placement=0:0.0:1",
                                               "parallel.microbatches=2"};
    SCOPED_TRACE(fmt::format("{}", fmt::join(switches, " ")));
    const std::string folder = fmt::format("run{}", bits);
    const Outcome outcome = run({"train", "job.yaml", "--out", folder}, switches);
    if (outcome.exit_code == 0) {
      const nlohmann::json summary = json(folder + "/summary.json");
      EXPECT_EQ(summary.at("samples"), 3 * 26);
      if (bits & 1) losses.push_back(summary.at("loss"));
    } else {
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_THAT(outcome.err, testing::AllOf(HasSubstr("elastic."), HasSubstr("write ")));
      EXPECT_FALSE(std::filesystem::exists(path(folder)));
    }
  }
  ASSERT_EQ(losses.size(), 6u);
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-5 * losses[0]);
}

TEST_F(ElasticCommand, AModelWithoutLayersIsRefused) {
  const Outcome outcome =
      run({"train", "job.yaml", "--out", "run"}, {"model.name=bag_of_tokens", "data.kind=synthetic"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("bag_of_tokens has no layers that could be frozen; write elastic.freeze: off"));
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

}  // namespace
}  // namespace millrace::cli
