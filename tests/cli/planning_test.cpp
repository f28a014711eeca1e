// From a job to a plan, a prediction, a run of it and the two side by side.
#include <gmock/gmock.h>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kCluster = R"(name: pair
nodes:
  - count: 1
    devices:
      - {kind: core, memory: 4 GiB, speed: 1}
      - {kind: core, memory: 4 GiB, speed: 1}
links:
  - {name: memory, group: 2, bandwidth: 10 GB/s, latency: 1 us}
)";

class Planning : public CommandTest {
 protected:
  Planning() {
    write("job.yaml", tiny_job());
    write("pair.yaml", kCluster);
  }
  Outcome succeed(const std::vector<std::string>& arguments) {
    Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  // Once, for the whole test: measuring is not what is tested.
  void measure_profile() {
    succeed({"profile", "job.yaml", "--rows", "2,8", "--repeats", "1", "--workers", "2", "-o", "p.json"});
  }
  std::vector<std::string> with_profiles(std::vector<std::string> arguments) {
    for (const char* word : {"--cluster", "pair.yaml", "--profile", "p-2.json", "--profile", "p-8.json"}) {
      arguments.emplace_back(word);
    }
    return arguments;
  }
};

TEST_F(Planning, APlanIsWrittenEditedAndRun) {
  measure_profile();
  const Outcome planned =
      succeed(with_profiles({"plan", "job.yaml", "--json", "plan.json", "--svg", "plan.svg", "--explain"}));
  EXPECT_THAT(planned.out, AllOf(HasSubstr("data parallel"), HasSubstr("straight pipeline"), HasSubstr("chosen")));
  EXPECT_THAT(read_text(path("plan.svg")), StartsWith("<svg"));

  Json plan = json("plan.json");
  for (const char* key : {"step_ms", "samples_per_s"}) EXPECT_GT(plan.at("predicted").at(key).get<double>(), 0);
  EXPECT_GE(plan.at("predicted").at("bubble_share").get<double>(), 0);
  for (const Json& stage : plan.at("stages")) {
    EXPECT_FALSE(stage.at("layers").empty());
    EXPECT_FALSE(stage.at("devices").empty());
    EXPECT_GT(stage.at("memory_bytes").get<int64_t>(), 0);
    EXPECT_GT(stage.at("step_ms").get<double>(), 0);
  }
  ASSERT_TRUE(plan.at("baselines").at("straight_pipeline").is_object());

  plan["parallel"] = plan["baselines"]["straight_pipeline"]["parallel"];
  plan["parallel"]["microbatches"] = 4;  // an edit, as a number
  write("edited.json", plan.dump());
  succeed({"train", "job.yaml", "--plan", "edited.json", "--out", "run", "--set", "steps=6"});
  EXPECT_EQ(json("run/summary.json").at("workers").size(), 2u);
  EXPECT_TRUE(json("run/plan.json").contains("predicted"));

  const Outcome report = succeed({"report", "run", "--json", "report.json"});
  EXPECT_THAT(report.out, AllOf(HasSubstr("planned"), HasSubstr("actual"), HasSubstr("dependency")));
  double all = 0;
  const Json time = json("report.json").at("time");
  for (const auto& [cause, share] : time.items()) all += share.get<double>();
  EXPECT_NEAR(all, 1, 1e-9);
}

TEST_F(Planning, APredictionLeavesTheTraceOfARun) {
  measure_profile();
  succeed(with_profiles({"simulate", "job.yaml", "--set", "parallel.mode=1f1b", "--set", "parallel.placement=0:0.0:1",
                         "--set", "parallel.microbatches=4", "--steps", "2", "--trace", "t.json", "--json", "s.json"}));
  size_t forwards = 0;
  const Json trace = json("t.json");
  for (const Json& event : trace.at("traceEvents")) forwards += event.at("name") == "F";
  EXPECT_EQ(forwards, 2u * 2 * 4);  // stages, steps, micro-batches
  EXPECT_GT(json("s.json").at("predicted").at("step_ms").get<double>(), 0);
}

TEST_F(Planning, TheSameInputGivesTheSamePlan) {
  measure_profile();
  succeed(with_profiles({"plan", "job.yaml", "--json", "a.json"}));
  succeed(with_profiles({"plan", "job.yaml", "--json", "b.json"}));
  EXPECT_EQ(read_text(path("a.json")), read_text(path("b.json")));
}

TEST_F(Planning, AutoPlansAndRuns) {
  succeed({"train", "job.yaml", "--out", "run", "--set", "steps=4", "--set", "parallel.mode=auto", "--set",
           "parallel.cluster=pair.yaml"});
  EXPECT_NE(json("run/summary.json").at("mode"), "auto");
  EXPECT_EQ(json("run/plan.json").at("cluster"), "pair");
  EXPECT_THAT(read_text(path("run/job.yaml")), testing::Not(HasSubstr("mode: auto")));
}

TEST_F(Planning, StaleModesAreLookedAtWhenAskedFor) {
  measure_profile();
  const std::vector<std::string> plan{"plan", "job.yaml", "--explain"};
  EXPECT_THAT(succeed(with_profiles(plan)).out, testing::Not(HasSubstr("ssp, on")));
  std::vector<std::string> stale = plan;
  stale.emplace_back("--stale");
  EXPECT_THAT(succeed(with_profiles(stale)).out, HasSubstr("ssp, on"));
  std::vector<std::string> by_key = plan;
  by_key.insert(by_key.end(), {"--set", "parallel.stale=true"});
  EXPECT_THAT(succeed(with_profiles(by_key)).out, HasSubstr("ssp, on"));
}

TEST_F(Planning, ReproduceWritesARowForEveryExperiment) {
  const Outcome outcome = succeed({"reproduce", "--no-plans", "--json", "rows.json"});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("GB/s of a sum"), HasSubstr("of_alexnet_dp_8r_b256")));
  const Json rows = json("rows.json");
  ASSERT_EQ(rows.size(), 31u);
  for (const Json& row : rows) {
    for (const char* key : {"id", "published_samples_per_s", "predicted_samples_per_s", "ratio", "chosen"}) {
      EXPECT_TRUE(row.contains(key)) << row;
    }
  }
}

TEST_F(Planning, RefusesInOneLine) {
  EXPECT_THAT(refusal({"plan", "job.yaml", "--cluster", "absent.yaml"}), HasSubstr("absent.yaml"));
  measure_profile();
  EXPECT_THAT(refusal({"plan", "job.yaml", "--cluster", "pair.yaml", "--profile", "absent.json"}),
              HasSubstr("absent.json: no such profile"));
  write("lone.yaml",
        "name: lone\nnodes:\n  - count: 1\n    devices:\n      - {kind: core, memory: 64 KiB, speed: 1}\n");
  std::vector<std::string> lone{"plan", "job.yaml", "--cluster", "lone.yaml", "--profile", "p-8.json"};
  EXPECT_THAT(refusal(lone), AllOf(HasSubstr("tiny: cannot run on lone"), HasSubstr("MiB")));
  EXPECT_THAT(refusal({"train", "job.yaml", "--plan", "absent.json"}), HasSubstr("absent.json: no such plan"));
  write("other.json", R"({"parallel": {"mode": "1f1b", "placement": "0:0.0:1", "cuts": ["classifier.0"]}})");
  EXPECT_THAT(refusal({"train", "job.yaml", "--plan", "other.json"}), HasSubstr("classifier.0"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--set", "parallel.mode=auto", "--set", "parallel.placement=0:0-1"}),
              HasSubstr("auto, which chooses parallel.placement itself"));
  EXPECT_THAT(refusal({"simulate", "job.yaml", "--set", "parallel.mode=auto"}), HasSubstr("write the plan first"));
  EXPECT_THAT(refusal({"report", "."}), HasSubstr("no run: summary.json is missing"));
}

}  // namespace
}  // namespace millrace::cli
