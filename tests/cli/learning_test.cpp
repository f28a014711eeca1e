// That networks learn under every setting of optimizer, schedule and loss that a job can name.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

constexpr bool kOptimized =
#ifdef NDEBUG
    true;
#else
    false;
#endif

class Learning : public CommandTest {
 protected:
  Learning() { write("job.yaml", tiny_job()); }

  // The steps of a run of six epochs of eight steps, on data that is easy to learn.
  std::vector<nlohmann::json> train(const std::string& out, const std::vector<std::string>& sets) {
    std::vector<std::string> all = {"epochs=6", "model.classes=4", "data.noise=0.2", "data.test_samples=0",
                                    "optimizer.lr=0.02"};
    all.insert(all.end(), sets.begin(), sets.end());
    const Outcome outcome = run({"train", "job.yaml", "--out", out}, all);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return steps(out);
  }
  std::string weights(const std::string& run_directory) const { return read(run_directory + "/model.safetensors"); }

  static double mean_loss(const std::vector<nlohmann::json>& records, size_t first, size_t count) {
    double sum = 0;
    for (size_t i = first; i < first + count; ++i) sum += records.at(i).at("loss").get<double>();
    return sum / static_cast<double>(count);
  }
  static void expect_loss_falls(const std::vector<nlohmann::json>& records) {
    ASSERT_EQ(records.size(), 48u);
    EXPECT_LT(mean_loss(records, 40, 8), 0.6 * mean_loss(records, 0, 8));
  }
  static double learning_rate(const std::vector<nlohmann::json>& records, size_t step) {
    return records.at(step).at("lr").get<double>();
  }
};

TEST_F(Learning, PlainDescentLearns) { expect_loss_falls(train("run", {"optimizer.momentum=0", "optimizer.lr=0.1"})); }

TEST_F(Learning, MomentumAndNesterovLearnDifferently) {
  // At twice the rate Nesterov is chaotic here: how far the loss falls depends on the rounding of the kernels chosen.
  expect_loss_falls(train("momentum", {"optimizer.momentum=0.9", "optimizer.lr=0.01"}));
  expect_loss_falls(train("nesterov", {"optimizer.momentum=0.9", "optimizer.lr=0.01", "optimizer.nesterov=true"}));
  EXPECT_NE(weights("momentum"), weights("nesterov"));
}

TEST_F(Learning, BothKindsOfWeightDecayLearnDifferently) {
  expect_loss_falls(train("none", {}));
  expect_loss_falls(train("coupled", {"optimizer.weight_decay=0.01"}));
  expect_loss_falls(train("decoupled", {"optimizer.weight_decay=0.01", "optimizer.decoupled=true"}));
  expect_loss_falls(train("weights_only",
                          {"optimizer.weight_decay=0.01", "optimizer.decay_bias=false", "optimizer.decay_norm=false"}));
  const std::set<std::string> different = {weights("none"), weights("coupled"), weights("decoupled"),
                                           weights("weights_only")};
  EXPECT_EQ(different.size(), 4u);
}

TEST_F(Learning, CosineWithWarmUpRisesAndEndsAtItsEnd) {
  const auto records = train("run", {"schedule.kind=cosine", "schedule.warmup_epochs=1", "schedule.end_lr=0.001"});
  expect_loss_falls(records);
  for (size_t step = 1; step < 8; ++step) EXPECT_GT(learning_rate(records, step), learning_rate(records, step - 1));
  EXPECT_NEAR(learning_rate(records, 8), 0.02, 0.001);
  for (size_t step = 10; step < 48; ++step) EXPECT_LT(learning_rate(records, step), learning_rate(records, step - 1));
  EXPECT_NEAR(learning_rate(records, 47), 0.001, 0.0005);
}

TEST_F(Learning, StepDecayFallsAtItsMilestones) {
  const auto records = train("run", {"schedule.kind=step", "schedule.milestones=[2, 4]", "schedule.gamma=0.5"});
  expect_loss_falls(records);
  EXPECT_DOUBLE_EQ(learning_rate(records, 15), 0.02);
  EXPECT_DOUBLE_EQ(learning_rate(records, 16), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate(records, 31), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate(records, 32), 0.005);
}

TEST_F(Learning, PolynomialDecayBendsByItsPower) {
  const auto records = train("run", {"schedule.kind=polynomial", "schedule.power=2"});
  expect_loss_falls(records);
  EXPECT_NEAR(learning_rate(records, 24), 0.02 / 4, 0.001);
  EXPECT_LT(learning_rate(records, 47), 0.001);
}

TEST_F(Learning, SmoothedLabelsLeaveALossThatCannotBeLearnedAway) {
  const auto records = train("run", {"loss.label_smoothing=0.2"});
  ASSERT_EQ(records.size(), 48u);
  EXPECT_LT(mean_loss(records, 40, 8), 0.8 * mean_loss(records, 0, 8));
  // The entropy of a target of 0.85 and three times 0.05.
  const double least = -(0.85 * std::log(0.85) + 0.15 * std::log(0.05));
  for (const auto& record : records) EXPECT_GT(record.at("loss").get<double>(), least - 1e-5);
}

TEST_F(Learning, PartsOfABatchLearnAsAWhole) {
  // Parts of eight; the last of an epoch has no samples. With parts of four, batch norm is chaotic here: how far the
  // loss falls depends on the rounding of the kernels chosen.
  const auto records = train("run", {"parallel.microbatches=2", "batch=16", "data.train_samples=120"});
  expect_loss_falls(records);
  EXPECT_EQ(json("run/summary.json").at("samples"), 6 * 120);
}

// AlexNet's classifier has 57 million parameters: plain loops would take minutes.
TEST_F(Learning, AlexNetLearnsWithAndWithoutDropout) {
  if (!MILLRACE_HAS_CPU) GTEST_SKIP() << "too slow on the reference backend";
  // One batch again and again: it can only be learned by heart.
  const std::vector<std::string> alexnet = {
      "model.name=alexnet",  "model.image_size=64",  "model.classes=4", "batch=4",
      "data.kind=synthetic", "data.train_samples=0", "steps=10",        "optimizer.lr=0.05"};
  std::vector<double> first;
  for (const std::string dropout : {"0", "0.5"}) {
    std::vector<std::string> sets = alexnet;
    sets.push_back("model.dropout=" + dropout);
    const Outcome outcome = run({"train", "job.yaml", "--out", "run", "--overwrite"}, sets);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto records = steps("run");
    ASSERT_EQ(records.size(), 10u);
    EXPECT_LT(mean_loss(records, 8, 2), 0.7 * mean_loss(records, 0, 1)) << "dropout " << dropout;
    first.push_back(mean_loss(records, 0, 1));
  }
  EXPECT_NE(first[0], first[1]);
}

TEST_F(Learning, TheQuickstartNetworkReaches95Percent) {
  const std::string job = std::string(MILLRACE_SOURCE_DIR) + "/jobs/quickstart.yaml";
  // The whole job where it takes half a minute, else the same network on a few small images.
  std::vector<std::string> sets = {"threads=1", std::string("device=") + kDevice};
  if (!kOptimized) {
    const std::vector<std::string> small = {"batch=8",
                                            "epochs=4",
                                            "model.classes=3",
                                            "model.image_size=6",
                                            "data.noise=0.1",
                                            "data.train_samples=240",
                                            "data.test_samples=100",
                                            "eval.every_epochs=0"};
    sets.insert(sets.end(), small.begin(), small.end());
  }
  const Outcome outcome = run({"train", job, "--out", "run"}, sets);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_GE(json("run/summary.json").at("accuracy").at("top1").get<double>(), 0.95);
}

}  // namespace
}  // namespace millrace::cli
