// millrace plan: stages from a graph file.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/command_runner.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class PlanCommand : public CommandTest {
 protected:
  static std::string graph(const std::string& model) {
    return std::string(MILLRACE_SOURCE_DIR) + "/tests/profile/data/" + model + ".graph.txt";
  }
  static std::vector<std::string> arguments(const std::string& file, const std::string& devices,
                                            const std::string& bandwidth) {
    return {"plan",    "--graph",      file,        "--devices", devices,    "--bandwidth",
            bandwidth, "--cost-model", "pipedream", "--json",    "plan.json"};
  }
};

TEST_F(PlanCommand, PlansAGraphFile) {
  const Outcome outcome = run(arguments(graph("alexnet"), "4", "1e9"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("node2 Conv2d to"), HasSubstr("to node23 Linear"), HasSubstr("34.2 ms"),
                                 HasSubstr("5.98 times as fast as data parallel")));
  const nlohmann::json plan = json("plan.json");
  EXPECT_NEAR(plan["cost_s"].get<double>(), 0.0342171, 0.5e-7);
  ASSERT_EQ(plan["stages"].size(), 2u);
  EXPECT_EQ(plan["stages"][0]["first"], "node2");
  EXPECT_EQ(plan["stages"][0]["replicas"], 3);
  EXPECT_EQ(plan["stages"][1]["last"], "node23");
  EXPECT_EQ(plan["stages"][1]["replicas"], 1);
}

TEST_F(PlanCommand, TakesLevelsInnermostFirst) {
  ASSERT_EQ(run(arguments(graph("vgg16"), "4x4", "1.1e10,1.25e9")).exit_code, 0);
  EXPECT_NEAR(json("plan.json")["cost_s"].get<double>(), 0.0670002, 0.5e-7);
}

TEST_F(PlanCommand, RefusesInOneLine) {
  const std::string alexnet = graph("alexnet");
  EXPECT_THAT(refusal(arguments("absent.txt", "4", "1e9")), HasSubstr("absent.txt: no such graph file"));
  EXPECT_THAT(refusal(arguments(alexnet, "0", "1e9")), HasSubstr("--devices \"0\": write a number from 1 to 1024"));
  EXPECT_THAT(refusal(arguments(alexnet, "4x", "1e9,1e9")), HasSubstr("--devices \"4x\""));
  EXPECT_THAT(refusal(arguments(alexnet, "64x64", "1e9,1e9")), HasSubstr("1 to 1024"));
  EXPECT_THAT(refusal(arguments(alexnet, "4x4", "1e9")), HasSubstr("has 2 levels, --bandwidth \"1e9\" has 1"));
  EXPECT_THAT(refusal(arguments(alexnet, "4", "0")), HasSubstr("--bandwidth \"0\": write bytes per second above 0"));
  EXPECT_THAT(refusal(arguments(alexnet, "4", "fast")), HasSubstr("--bandwidth \"fast\""));
  std::vector<std::string> model = arguments(alexnet, "4", "1e9");
  model[8] = "pipedreams";
  EXPECT_THAT(refusal(model), AllOf(HasSubstr("--cost-model"), HasSubstr("pipedream")));
  EXPECT_THAT(refusal({"plan"}), HasSubstr("write a job, millrace plan JOB --cluster FILE, or --graph"));
  EXPECT_THAT(refusal({"plan", "--graph", alexnet, "--devices", "4", "--bandwidth", "1e9"}),
              HasSubstr("--graph needs --cost-model too"));
  EXPECT_THAT(refusal({"plan", "job.yaml", "--devices", "4"}), HasSubstr("--devices goes with --graph"));
  std::vector<std::string> explained = arguments(alexnet, "4", "1e9");
  explained.emplace_back("--explain");
  EXPECT_THAT(refusal(explained), HasSubstr("--explain goes with a job, not with --graph"));
  write("ring.txt",
        "a -- ReLU -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=0\n"
        "\ta -- a\n");
  EXPECT_THAT(refusal(arguments("ring.txt", "4", "1e9")), StartsWith("millrace: ring.txt:1: a cycle: a -> a"));
}

}  // namespace
}  // namespace millrace::cli
