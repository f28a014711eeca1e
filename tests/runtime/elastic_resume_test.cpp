// A run whose layers freeze goes on from a checkpoint of any moment as if it had not been interrupted: before a
// decision, between it and its boundary, and behind it.
#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/job/reader.h"
#include "millrace/runtime/succession.h"
#include "millrace/state/checkpoint_store.h"
#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

job::Job freezing_job(job::Freeze freeze) {
  job::Job job = small_job();
  job.model = small_vit(16, 12, 3);
  job.model.layers = 4;
  job.optimizer.kind = job::Algorithm::AdamW;
  job.optimizer.lr = 0.002;
  job.steps = 26;
  job.data.test_samples = 5;
  job.parallel.mode = job::Mode::OneFOneB;
  job.parallel.placement = straight(2);
  job.parallel.microbatches = 2;
  job.elastic.freeze = freeze;
  job.elastic.alpha = 0.4;
  job.elastic.every = {job::Period::Unit::Steps, 8};  // decided two steps ahead
  return job;
}

struct Ran {
  state::State state;
  TrainingResult result;
  std::vector<Stretch> stretches;
};

class ElasticResume : public state::TemporaryFolder {
 protected:
  // From the newest checkpoint of the folder, if there is one.
  Ran train(job::Job job, const fs::path& checkpoints, int64_t stop_at = -1) {
    const std::vector<fs::path> saved =
        fs::exists(checkpoints) ? state::CheckpointStore(checkpoints).list() : std::vector<fs::path>();
    plan::FreezeState freezing;
    StateReader reader;
    if (!saved.empty()) {
      const fs::path from = saved.back();
      const state::Manifest manifest = state::read_manifest(from);
      job = job::parse_job(state::read_job(from, manifest), "job.yaml", {});
      freezing = *manifest.freezing;
      reader = [=](const Session::Wanted& wanted) { return state::read_state(from, manifest, wanted); };
    }
    const auto process = comm::make_local_process();
    const Succession::Planner planner = [](const job::Job& now, int frozen, int) {
      NextPlan next;
      next.job = now;
      next.job.model.frozen = frozen;
      if (now.elastic.grows) next.job.batch = 2 * now.batch;
      return next;
    };
    Succession succession(std::make_unique<Training>(job, *process, MachineLimit{}, OnMeasure(), reader), job, *process,
                          {}, planner, freezing);
    Observer observer;
    int64_t told = 0;
    observer.on_step = [&](const StepReport& step) { told = step.step + 1; };
    observer.wants_to_end = [&] { return stop_at >= 0 && told >= stop_at; };
    observer.checkpoints = checkpoints;
    Ran ran;
    ran.result = succession.run(observer);
    ran.state = succession.training().state();
    ran.stretches = succession.stretches();
    return ran;
  }
};

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
