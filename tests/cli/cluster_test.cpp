// What `millrace cluster` prints, measures and refuses.
#include <gmock/gmock.h>

#include "cli/command_runner.h"
#include "millrace/backend/cuda/cuda_backend.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

class ClusterCommand : public CommandTest {};

TEST_F(ClusterCommand, ShowPrintsDevicesLevelsAndBandwidths) {
  const Outcome outcome = run({"cluster", "show", std::string(MILLRACE_SOURCE_DIR) + "/clusters/titan-v-8x2.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"2 nodes, 16 devices", "0:0-7", "1:0-7", "TITAN V", "12.0 GiB", "pcie switch", "network",
                           "one each", "7.00 GB/s", "1:7"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

TEST_F(ClusterCommand, ShowOfALargeClusterNamesWhatItLeavesOut) {
  const Outcome outcome = run({"cluster", "show", std::string(MILLRACE_SOURCE_DIR) + "/clusters/v100-8x4.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("4 of 32 devices are shown"));
}

TEST_F(ClusterCommand, DetectWritesWhatShowReads) {
  const Outcome outcome = run({"cluster", "detect", "-o", "local.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("local: 1 node, "));
  EXPECT_THAT(outcome.out, HasSubstr("written: local.yaml"));
  EXPECT_EQ(files(), std::set<std::string>{"local.yaml"});
  const Outcome shown = run({"cluster", "show", "local.yaml"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(shown.out + "\nwritten: local.yaml\n", outcome.out);
}

TEST_F(ClusterCommand, MistakesAreOneLine) {
  write("bad.yaml", "nodes:\n  - devices: [{kind: a, memory: 1 GiB, sped: 2}]\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"cluster", "show", "bad.yaml"}, "bad.yaml:2: unknown key \"sped\"; did you mean speed?"},
      {{"cluster", "show", "none.yaml"}, "none.yaml: no such cluster file"},
      {{"cluster", "show"}, "FILE"},
      {{"cluster", "detect", "-o", "no/where.yaml"}, "no/where.yaml"},
      {{"cluster", "detct"}, "did you mean detect?"},
      {{"cluster"}, "a command is missing"},
  };
  for (const auto& [arguments, part] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << part;
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(ClusterCommand, WithoutAGpuThereIsNothingToDetect) {
  if (backend::cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  const Outcome outcome = run({"cluster", "detect", "--gpus"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("device: cuda"));
}

}  // namespace
}  // namespace millrace::cli
