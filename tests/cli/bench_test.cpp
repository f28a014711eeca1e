// What `millrace bench` prints and records.
#include <gmock/gmock.h>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class Bench : public CommandTest {
 protected:
  Bench() { write("job.yaml", tiny_job()); }
};

TEST_F(Bench, RecordHoldsWhatScriptsRelyOn) {
  const Outcome outcome = run({"bench", "job.yaml", "--set", "steps=4", "--json", "record.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json record = json("record.json");
  const double p10 = record.at("step_ms").at("p10"), p50 = record.at("step_ms").at("p50"),
               p90 = record.at("step_ms").at("p90");
  EXPECT_GT(p10, 0);
  EXPECT_LE(p10, p50);
  EXPECT_LE(p50, p90);
  EXPECT_NEAR(record.at("samples_per_s").get<double>(), 8 / p50 * 1e3, 1e-6 * 8 / p50 * 1e3);
  EXPECT_GT(record.at("gflops").get<double>(), 0);
  EXPECT_GT(record.at("peak_bytes").at("planned").get<int64_t>(), 100'000);
  EXPECT_GT(record.at("peak_bytes").at("measured").get<int64_t>(), 100'000);
  EXPECT_GT(record.at("operators_ms").size(), 5u);
  EXPECT_EQ(record.at("peak_gflops").get<double>() > 0, static_cast<bool>(MILLRACE_HAS_CPU));
}

TEST_F(Bench, PrintsSpeedTimesMemoryAndOperators) {
  const Outcome outcome = run({"bench", "job.yaml", "--set", "steps=4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"samples/s", "p10", "p50", "p90", "GFLOP/s", "planned", "measured", "conv2d", "batch_norm",
                           "linear", "median of 4 steps", "W weight gradient"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(outcome.out, testing::ContainsRegex("batch +8\n"));
  const char* device = MILLRACE_HAS_CPU ? "device +.+, 1 thread, fp32\n" : "device +reference, fp32\n";
  EXPECT_THAT(outcome.out, testing::ContainsRegex(device));
  EXPECT_THAT(outcome.out, Not(HasSubstr("layer1.0.conv1")));
}

TEST_F(Bench, ReferenceHasItsArithmeticToo) {
  const Outcome outcome = run({"bench", "job.yaml", "--set", "steps=1", "--set", "device=reference"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("arithmetic +[0-9.]+ GFLOP/s\n"));
  EXPECT_THAT(outcome.out, HasSubstr("median of 1 step)"));
}

TEST_F(Bench, SmallPlansHaveNoShareOfWhatIsMeasured) {
  const Outcome outcome = run({"bench", "job.yaml", "--set", "steps=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("memory +planned [^(]* measured [^(]*\noutside kernels"));
}

TEST_F(Bench, LayersNamesEveryLayer) {
  const Outcome outcome = run({"bench", "job.yaml", "--set", "steps=2", "--layers"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* layer : {"conv1", "layer1.0.conv1", "layer3.0.downsample.0", "fc"}) {
    EXPECT_THAT(outcome.out, HasSubstr(layer));
  }
}

TEST_F(Bench, WarmUpStepsAreNotCounted) {
  const Outcome outcome = run({"bench", "job.yaml", "--set", "steps=3", "--warmup", "0"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("median of 3 steps"));
}

TEST_F(Bench, LeavesNoRunDirectory) {
  ASSERT_EQ(run({"bench", "job.yaml", "--set", "steps=2", "--json", "record.json"}).exit_code, 0);
  EXPECT_EQ(files(), (std::set<std::string>{"job.yaml", "record.json"}));
}

TEST_F(Bench, ShippedJobsAreAccepted) {
  if (!MILLRACE_HAS_CPU) GTEST_SKIP() << "too slow on the reference backend";
  const std::string job = std::string(MILLRACE_SOURCE_DIR) + "/jobs/resnet50.yaml";
  const Outcome outcome = run({"bench", job, "--warmup", "1", "--json", "record.json"},
                              {"threads=1", "batch=1", "steps=1", "model.image_size=32"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json("record.json").at("model"), "resnet50");
  EXPECT_EQ(json("record.json").at("parameters"), 25'557'032);
}

}  // namespace
}  // namespace millrace::cli
