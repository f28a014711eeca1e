// A guard in a run: what was frozen when the test loss got worse learns again.
#include <cmath>

#include "runtime/elastic_harness.h"

namespace millrace::runtime {
namespace {

constexpr int kLayers = 4, kInterval = 8;
constexpr double kAlpha = 0.4, kGuard = 0.02;

// At a rate at which the loss goes up and down. Evaluated at each boundary, two steps after the decision.
job::Job guarded_job() {
  job::Job job = freezing_job(job::Freeze::Schedule);
  job.elastic.alpha = kAlpha;
  job.elastic.guard = kGuard;
  job.optimizer.lr = 0.02;
  job.steps = 10 * kInterval + 3;
  job.eval.every_epochs = 2;
  return job;
}

// The rule once more: levels of freezing interval by interval, from the test losses at the ends of the intervals.
std::vector<int> levels_by(const std::vector<double>& losses, size_t intervals) {
  std::vector<int> level{0}, before{0};
  double best = INFINITY;
  for (size_t i = 0; i + 1 < intervals; ++i) {
    int next = std::max(level[i], static_cast<int>(std::ceil(kLayers * (1 - std::pow(1 - kAlpha, i + 1.0)))));
    if (i > 0) {  // the loss at the end of interval i is not known yet
      const double loss = losses[i - 1];
      best = std::min(best, loss);
      if (loss > best * (1 + kGuard)) next = std::min(level[i], before[i - 1]);
    }
    before.push_back(next == level[i] ? before[i] : std::min(level[i], next));
    level.push_back(next);
  }
  return level;
}

std::vector<int> levels_of(const Ran& ran, size_t intervals) {
  std::vector<int> levels;
  for (const Stretch& stretch : ran.stretches) {
    levels.resize(std::min<size_t>(intervals, (stretch.first_step + stretch.steps + kInterval - 1) / kInterval),
                  stretch.frozen);
  }
  return levels;
}

class ElasticGuard : public ElasticTraining {};

TEST_F(ElasticGuard, FollowsTheRuleAndThawsWhatMadeItWorse) {
  const job::Job job = guarded_job();
  const Ran ran = train(job, {});
  ASSERT_EQ(ran.test_losses.size(), 11u);
  const std::vector<int> levels = levels_of(ran, 11);
  EXPECT_EQ(levels, levels_by(ran.test_losses, 11));
  EXPECT_FALSE(std::is_sorted(levels.begin(), levels.end())) << "nothing was taken back";
  job::Job alone = job;
  alone.parallel.placement = "0:0";
  alone.parallel.mode = job::Mode::Dp;
  const Ran one = train(alone, {});
  EXPECT_EQ(one.test_losses, ran.test_losses);
  EXPECT_TRUE(one.state.params == ran.state.params);
}

TEST_F(ElasticGuard, IsTheSameInARunThatGoesOn) {
  const job::Job job = guarded_job();
  const Ran whole = train(job, {});
  for (const int64_t stop : {9, 15, 17, 30, 47, 63}) {
    SCOPED_TRACE(testing::Message() << "asked to end at step " << stop);
    const std::filesystem::path folder = folder_ / std::to_string(stop);
    ASSERT_TRUE(train(job, folder, stop).result.stopped);
    const Ran rest = train(job, folder);
    EXPECT_EQ(rest.stretches.back().frozen, whole.stretches.back().frozen);
    EXPECT_TRUE(rest.state.params == whole.state.params);
  }
}

}  // namespace
}  // namespace millrace::runtime
