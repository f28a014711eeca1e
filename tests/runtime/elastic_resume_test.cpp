// A run whose layers freeze goes on from a checkpoint of any moment as if it had not been interrupted: before a
// decision, between it and its boundary, and behind it.
#include "runtime/elastic_harness.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

class ElasticResume : public ElasticTraining {};

TEST_F(ElasticResume, GoesOnFromEveryStep) {
  for (const job::Freeze freeze : {job::Freeze::Schedule, job::Freeze::Gradient}) {
    const job::Job job = freezing_job(freeze);
    const Ran whole = train(job, {});
    ASSERT_GE(whole.stretches.size(), 2u);
    for (int64_t stop = 1; stop < 25; stop += 2) {
      SCOPED_TRACE(testing::Message() << "freeze " << static_cast<int>(freeze) << ", asked to end at step " << stop);
      const fs::path folder = folder_ / std::to_string(static_cast<int>(freeze)) / std::to_string(stop);
      const Ran first = train(job, folder, stop);
      if (!first.result.stopped) continue;  // it was at its end already
      const Ran rest = train(job, folder);
      EXPECT_EQ(rest.result.steps, 26);
      EXPECT_EQ(rest.stretches.back().frozen, whole.stretches.back().frozen);
      EXPECT_TRUE(rest.state.params == whole.state.params);
      EXPECT_TRUE(rest.state.second_moment == whole.state.second_moment);
      EXPECT_TRUE(rest.state.watched == whole.state.watched);
    }
  }
}

// Steps of three sizes: 7, then 4, then 2 an epoch.
TEST_F(ElasticResume, GoesOnWithABatchThatHasGrown) {
  job::Job job = freezing_job(job::Freeze::Schedule);
  job.batch = 4;
  job.steps = 0;
  job.epochs = 3;
  job.elastic.every = {job::Period::Unit::Epochs, 1};
  job.elastic.grows = true;
  job.elastic.pipe = job.elastic.dp = true;  // which the harness's own planner does not ask for
  job.schedule.kind = job::Decay::Linear;
  const Ran whole = train(job, {});
  ASSERT_EQ(whole.result.steps, 7 + 4 + 2);
  int resumed = 0;
  for (int64_t stop = 1; stop < 13; ++stop) {
    SCOPED_TRACE(testing::Message() << "asked to end at step " << stop);
    const fs::path folder = folder_ / std::to_string(stop);
    if (!train(job, folder, stop).result.stopped) continue;
    ++resumed;
    const Ran rest = train(job, folder);
    EXPECT_EQ(rest.result.steps, 13);
    EXPECT_EQ(rest.result.samples, 3 * 26);
    EXPECT_TRUE(rest.state.params == whole.state.params);
    EXPECT_TRUE(rest.state.since == whole.state.since);
  }
  EXPECT_GT(resumed, 0);
}

}  // namespace
}  // namespace millrace::runtime
