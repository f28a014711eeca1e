// A run that goes on from a checkpoint is the run that was never interrupted: the same bits on the same topology, and
// on another what that one makes of the state. Through the files, as a user would.
#include <algorithm>
#include <filesystem>
#include <mutex>

#include "millrace/state/checkpoint_store.h"
#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;
using job::Mode;
using job::Replicas;

struct Topology {
  std::string name;
  job::Parallel parallel;
};

job::Parallel parallel(Mode mode, const std::string& placement, int microbatches = 1,
                       Replicas replicas = Replicas::Split) {
  job::Parallel parallel;
  parallel.mode = mode;
  parallel.placement = placement;
  parallel.microbatches = microbatches;
  parallel.replicas = replicas;
  return parallel;
}

std::vector<Topology> topologies() {
  return {{"one", parallel(Mode::Dp, "0:0")},
          {"dp2", parallel(Mode::Dp, "0:0-1")},
          {"dp3", parallel(Mode::Dp, "0:0-2")},
          {"pp2", parallel(Mode::OneFOneB, "0:0.0:1", 4)},
          {"pp3", parallel(Mode::OneFOneB, "0:0.0:1.0:2", 4)},
          {"pp2xdp2", parallel(Mode::OneFOneB, "0:0-1.0:2-3", 2)},
          {"ssp_2_1", parallel(Mode::Ssp, "0:0-1.0:2")}};
}

std::vector<Topology> all_modes() {
  std::vector<Topology> all = topologies();
  all.push_back({"gpipe", parallel(Mode::GPipe, "0:0.0:1", 4)});
  all.push_back({"ssp3", parallel(Mode::Ssp, "0:0.0:1.0:2")});
  all.push_back({"pipedream", parallel(Mode::PipeDream, "0:0.0:1.0:2")});
  all.push_back({"in_turn", parallel(Mode::PipeDream, "0:0-1.0:2", 1, Replicas::RoundRobin)});
  all.push_back({"dp_in_turn", parallel(Mode::Dp, "0:0-1", 4, Replicas::RoundRobin)});
  all.push_back({"as_ready", parallel(Mode::Ssp, "0:0.0:1.0:2")});
  all.back().parallel.static_scheduling = false;
  return all;
}

job::Job job_on(const Topology& topology, int64_t steps) {
  job::Job job = small_job();
  job.data.test_samples = 5;
  job.steps = steps;
  job.parallel = topology.parallel;
  return job;
}

struct Ran {
  state::State state;
  TrainingResult result;
  std::map<int64_t, std::map<int64_t, int>> seen;  // how often each sample came, by epoch
  std::vector<std::string> notes;
};

class Resume : public state::TemporaryFolder {
 protected:
  // `stop_at`: asks it to end as soon as that many steps are told.
  static Ran train(const job::Job& job, const fs::path& checkpoints, const StateReader& reader = {},
                   int64_t stop_at = -1) {
    Ran ran;
    const auto process = comm::make_local_process();
    Training training(job, *process, {}, {}, reader);
    Observer observer;
    std::mutex mutex;
    int64_t told = 0;
    const auto epoch_steps = static_cast<int64_t>(training.steps_per_epoch());
    observer.on_step = [&](const StepReport& step) { told = step.step + 1; };
    observer.on_samples = [&](int64_t step, std::span<const int64_t> samples) {
      const std::lock_guard lock(mutex);
      for (int64_t sample : samples) ++ran.seen[step / epoch_steps][sample];
    };
    observer.on_note = [&](const std::string& note) { ran.notes.push_back(note); };
    observer.wants_to_end = [&] { return stop_at >= 0 && told >= stop_at; };
    observer.checkpoints = checkpoints;
    ran.result = training.run(observer);
    ran.state = training.state();
    return ran;
  }

  static StateReader from(const fs::path& checkpoint) {
    return [=](const Session::Wanted& wanted) {
      return state::read_state(checkpoint, state::read_manifest(checkpoint), wanted);
    };
  }
};

TEST_F(Resume, GoesOnBitForBitInEveryMode) {
  for (const Topology& topology : all_modes()) {
    job::Job job = job_on(topology, 11);
    job.checkpoint.every = {job::Period::Unit::Steps, 4};
    const fs::path folder = folder_ / topology.name;
    const Ran whole = train(job, folder);
    const std::vector<fs::path> saved = state::CheckpointStore(folder).list();
    ASSERT_GE(saved.size(), 2u) << topology.name;  // of 4 and 11, and of 8 unless that of 4 was still being written
    for (size_t i = 0; i + 1 < saved.size(); ++i) {
      const Ran rest = train(job, {}, from(saved[i]));
      EXPECT_TRUE(rest.state == whole.state) << topology.name << " from " << saved[i].filename();
      EXPECT_EQ(rest.result.samples, whole.result.samples) << topology.name;
    }
  }
}

// The others have none that matter on the CPU: clipping needs norms of all stages, AdamW counts its updates, batch norm
// has statistics.
TEST_F(Resume, GoesOnWithEveryKindOfState) {
  for (const Topology& topology : all_modes()) {
    job::Job job = job_on(topology, 7);
    job.model = {.name = "resnet_small", .classes = 10, .image_size = 8};
    job.optimizer.kind = job::Algorithm::AdamW;
    job.optimizer.lr = 1e-3;
    const bool can_clip = topology.parallel.mode != Mode::PipeDream && topology.parallel.mode != Mode::Ssp;
    job.optimizer.clip_norm = can_clip ? 0.5 : 0;
    job.checkpoint.every = {job::Period::Unit::Steps, 4};
    const fs::path folder = folder_ / topology.name;
    const Ran whole = train(job, folder);
    const std::vector<fs::path> saved = state::CheckpointStore(folder).list();
    ASSERT_EQ(saved.size(), 2u) << topology.name;
    EXPECT_TRUE(train(job, {}, from(saved[0])).state == whole.state) << topology.name;
  }
}

TEST_F(Resume, StopsWhereAskedAndGoesOn) {
  for (const Topology& topology : all_modes()) {
    const job::Job job = job_on(topology, 26);  // nothing is saved but at the end
    const fs::path folder = folder_ / topology.name;
    const Ran first = train(job, folder, {}, 5);
    EXPECT_TRUE(first.result.stopped) << topology.name;
    ASSERT_LT(first.result.steps, 26) << topology.name;
    EXPECT_EQ(first.result.saved_step, first.result.steps) << topology.name;
    const std::vector<fs::path> saved = state::CheckpointStore(folder).list();
    ASSERT_EQ(saved.size(), 1u) << topology.name;
    const Ran rest = train(job, {}, from(saved[0]));
    EXPECT_TRUE(rest.state == train(job, {}).state) << topology.name;
  }
}

// Saved by any, gone on with by any: what the other makes of the state, which is the same whether it comes from files
// or from memory; and of each epoch every sample is seen once.
TEST_F(Resume, AnyTopologyGoesOnFromAnyOther) {
  constexpr int64_t kAt = 6, kSteps = 12;  // within the second of three epochs, four steps each
  for (const Topology& saver : topologies()) {
    job::Job first = job_on(saver, kSteps);
    first.checkpoint.every = {job::Period::Unit::Steps, kAt};
    const fs::path folder = folder_ / saver.name;
    const Ran whole = train(first, folder);
    const fs::path saved = state::CheckpointStore(folder).path(kAt);
    job::Job half = first;
    half.steps = kAt;
    half.data.test_samples = 0;
    half.checkpoint = {};
    const Ran before = train(half, {});
    state::State state = before.state;
    for (const Topology& other : topologies()) {
      const std::string how = saver.name + " to " + other.name;
      const job::Job job = job_on(other, kSteps);
      const Ran from_file = train(job, {}, from(saved));
      EXPECT_EQ(from_file.result.steps, kSteps) << how;
      const Ran from_memory = train(job, {}, [&](const Session::Wanted&) { return state; });
      EXPECT_TRUE(from_file.state == from_memory.state) << how;
      const bool same = saver.name == other.name;
      // Stages of a pipeline without replicas are no other numbers at all.
      const auto is_straight = [](const std::string& name) { return name == "pp2" || name == "pp3"; };
      if (same || (is_straight(saver.name) && is_straight(other.name))) {
        EXPECT_TRUE(from_file.state == whole.state) << how;
      }
      // A synchronous mode knows the newest weights only.
      if (other.parallel.mode != Mode::Ssp) {
        const Ran newest = train(job, {}, [&](const Session::Wanted&) {
          state::State without = state;
          without.older.clear();
          return without;
        });
        EXPECT_TRUE(newest.state == from_file.state) << how;
      }
      std::map<int64_t, int> second_epoch = before.seen.at(1);
      for (const auto& [sample, count] : from_file.seen.at(1)) second_epoch[sample] += count;
      EXPECT_EQ(second_epoch.size(), 26u) << how;
      EXPECT_TRUE(std::all_of(second_epoch.begin(), second_epoch.end(), [](const auto& s) { return s.second == 1; }))
          << how;
    }
  }
}

TEST_F(Resume, IsSavedByTheClockToo) {
  for (const Topology& topology : {all_modes()[3], all_modes()[8]}) {
    job::Job job = job_on(topology, 60);
    job.data.test_samples = 0;
    job.checkpoint = {.every = {job::Period::Unit::Minutes, 0.1 / 60}, .keep = 100};
    const fs::path folder = folder_ / topology.name;
    const Ran whole = train(job, folder);
    const std::vector<fs::path> saved = state::CheckpointStore(folder).list();
    ASSERT_GE(saved.size(), 2u) << topology.name;
    EXPECT_LT(state::step_of(saved[0]), 60) << topology.name;
    EXPECT_TRUE(train(job, {}, from(saved[0])).state == whole.state) << topology.name;
  }
}

// One that goes on in another place has no checkpoint there yet.
TEST_F(Resume, StoppedAtOnceInAnotherPlaceIsSavedThere) {
  job::Job job = job_on(topologies()[0], 8);
  job.checkpoint.every = {job::Period::Unit::Steps, 4};
  train(job, folder_ / "first");
  const fs::path saved = state::CheckpointStore(folder_ / "first").path(4);
  const Ran rest = train(job, folder_ / "second", from(saved), 0);
  EXPECT_TRUE(rest.result.stopped);
  EXPECT_EQ(rest.result.saved_step, rest.result.steps);
  const auto there = state::CheckpointStore(folder_ / "second").list();
  ASSERT_EQ(there.size(), 1u);
  EXPECT_TRUE(train(job, {}, from(there[0])).state == train(job, {}).state);
}

TEST_F(Resume, TheBestIsKeptApartAndTheNewestByNumber) {
  for (const auto& [by, name] : {std::pair{job::Best::Loss, "loss"}, std::pair{job::Best::Top1, "top1"}}) {
    SCOPED_TRACE(name);
    job::Job job = job_on(topologies()[0], 24);
    job.data.test_samples = 50;
    job.checkpoint = {.every = {job::Period::Unit::Epochs, 1}, .keep = 2, .best = by};
    std::vector<double> figures;
    const fs::path folder = folder_ / name;
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    Observer observer;
    observer.checkpoints = folder;
    observer.on_evaluation = [&, by = by](double, const Metrics& metrics) {
      figures.push_back(by == job::Best::Loss ? metrics.loss() : metrics.top1 / metrics.rows);
    };
    const TrainingResult result = training.run(observer);
    const state::CheckpointStore store(folder);
    EXPECT_LE(store.list().size(), 2u);
    EXPECT_EQ(store.list().back(), store.path(24));
    ASSERT_TRUE(store.best());
    EXPECT_TRUE(state::verify(*store.best()).empty());
    if (!result.failed_saves.empty()) continue;  // a slow disk: some were left out
    EXPECT_EQ(store.list(), (std::vector{store.path(20), store.path(24)}));
    const auto best = by == job::Best::Loss ? std::min_element(figures.begin(), figures.end())
                                            : std::max_element(figures.begin(), figures.end());
    EXPECT_EQ(state::step_of(*store.best()), 4 * (best - figures.begin() + 1));
    EXPECT_EQ(state::read_manifest(*store.best()).figures.at(name), *best);
  }
}

TEST_F(Resume, AnUnwritableDirectoryIsSaidAndTrainingGoesOn) {
  write_bytes(path("file"), "in the way");
  job::Job job = job_on(topologies()[3], 9);
  job.checkpoint.every = {job::Period::Unit::Steps, 3};
  const Ran ran = train(job, folder_ / "file" / "checkpoints");
  EXPECT_EQ(ran.result.steps, 9);
  EXPECT_EQ(ran.result.failed_saves.size(), 3u);
  ASSERT_EQ(ran.notes.size(), 3u);
  EXPECT_NE(ran.notes[0].find("the checkpoint of step 3 is left out"), std::string::npos) << ran.notes[0];
  EXPECT_TRUE(ran.state == train(job, {}).state);
}

// Weights that are hurt by one batch: what comes after the checkpoint is dropped, and the batches since are not met
// again.
TEST_F(Resume, ADivergedRunGoesBackAndPastTheData) {
  for (const Topology& topology : all_modes()) {
    job::Job job = job_on(topology, 40);
    job.data.test_samples = 0;
    job.checkpoint.every = {job::Period::Unit::Steps, 4};
    job.on_divergence = job::OnDivergence::Rollback;
    job.divergence = {.spike = 1.0001, .rollbacks = 2};  // any loss that is above the mean of those before
    const fs::path folder = folder_ / topology.name;
    std::vector<int64_t> steps;
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    Observer observer;
    observer.checkpoints = folder;
    observer.stop_if_diverged = true;
    observer.on_step = [&](const StepReport& step) { steps.push_back(step.step); };
    const TrainingResult result = training.run(observer);
    ASSERT_EQ(result.rollbacks.size(), 2u) << topology.name;
    EXPECT_TRUE(result.diverged) << topology.name;  // the third was one too many
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(i)) << topology.name;
    for (const Rollback& rollback : result.rollbacks) EXPECT_LT(rollback.to, rollback.step) << topology.name;

    // From the first checkpoint that was gone back to, to the second rollback, it is a run from that state.
    const Rollback& back = result.rollbacks[0];
    job::Job rest = job;
    rest.steps = result.rollbacks[1].step + 1;
    rest.checkpoint = {};
    rest.on_divergence = job::OnDivergence::Stop;
    const fs::path gone_back_to = state::CheckpointStore(folder).path(back.to);
    if (!fs::exists(gone_back_to)) continue;  // of those that are kept
    double last = 0;
    const auto other = comm::make_local_process();
    Training again(rest, *other, {}, {}, [&](const Session::Wanted&) {
      state::State state = state::read_state(gone_back_to, state::read_manifest(gone_back_to));
      state.step = back.step + 1;
      return state;
    });
    Observer watch;
    watch.on_step = [&](const StepReport& step) { last = step.metrics.loss(); };
    again.run(watch);
    EXPECT_EQ(last, result.rollbacks[1].loss) << topology.name;
  }
}

}  // namespace
}  // namespace millrace::runtime
