// A run that is asked to end where an evaluation is due leaves it to the one that goes on: together they make every
// evaluation of a run that was never stopped.
#include <functional>

#include "millrace/state/checkpoint_store.h"
#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEpochSteps = 4;  // 26 samples in batches of 8

struct Evaluated {
  double epoch, loss, top1;
  bool operator==(const Evaluated&) const = default;
};
void PrintTo(const Evaluated& one, std::ostream* out) {
  *out << "epoch " << one.epoch << ": " << one.loss << ", " << one.top1;
}

std::vector<job::Parallel> ways() {
  job::Parallel one, stages, delayed, in_turn;
  one.placement = "0:0";
  stages.mode = job::Mode::OneFOneB;
  stages.microbatches = 4;
  stages.placement = "0:0.0:1";
  delayed.mode = job::Mode::Ssp;
  delayed.placement = "0:0-1.0:2";
  in_turn.mode = job::Mode::PipeDream;
  in_turn.replicas = job::Replicas::RoundRobin;
  in_turn.placement = "0:0-1.0:2";
  return {one, stages, delayed, in_turn};
}

class StoppedEvaluation : public state::TemporaryFolder {
 protected:
  static job::Job job_on(const job::Parallel& parallel) {
    job::Job job = small_job();
    job.data.test_samples = 37;
    job.steps = 5 * kEpochSteps + 1;
    job.parallel = parallel;
    job.checkpoint.best = job::Best::Loss;
    return job;
  }
  // Goes on from the newest checkpoint in the folder, if there is one; its evaluations are added to `all`.
  static TrainingResult train(const job::Job& job, const fs::path& folder, std::vector<Evaluated>& all,
                              const std::function<bool(int64_t told)>& wants_to_end) {
    const std::vector<fs::path> saved = state::CheckpointStore(folder).list();
    StateReader reader;
    if (!saved.empty()) {
      reader = [&](const Session::Wanted& wanted) {
        return state::read_state(saved.back(), state::read_manifest(saved.back()), wanted);
      };
    }
    const auto process = comm::make_local_process();
    Training training(job, *process, {}, {}, reader);
    int64_t told = training.first_step();
    Observer observer;
    observer.checkpoints = folder;
    observer.on_step = [&](const StepReport& step) { told = step.step + 1; };
    observer.on_evaluation = [&](double epoch, const Metrics& metrics) {
      all.push_back({epoch, metrics.loss(), metrics.top1});
    };
    observer.wants_to_end = [&] { return wants_to_end(told); };
    return training.run(observer);
  }
  static TrainingResult train_whole(const job::Job& job, const fs::path& folder, std::vector<Evaluated>& all) {
    return train(job, folder, all, [](int64_t) { return false; });
  }
};

TEST_F(StoppedEvaluation, IsMadeByTheRunThatGoesOn) {
  int on_boundary = 0;
  for (const job::Parallel& parallel : ways()) {
    SCOPED_TRACE(parallel.placement);
    const job::Job job = job_on(parallel);
    std::vector<Evaluated> whole;
    const fs::path unstopped = folder_ / "unstopped";
    const TrainingResult never_stopped = train_whole(job, unstopped, whole);
    ASSERT_EQ(whole.size(), 6u);
    for (const int64_t stop_at : {6, 7}) {
      const fs::path folder = folder_ / "stopped";
      fs::remove_all(folder);
      std::vector<Evaluated> made;
      // Steps that are granted already are made: usually to the end of the epoch.
      const TrainingResult first = train(job, folder, made, [&](int64_t told) { return told >= stop_at; });
      ASSERT_TRUE(first.stopped);
      ASSERT_EQ(first.saved_step, first.steps);
      if (first.steps == 2 * kEpochSteps) {
        ++on_boundary;
        EXPECT_EQ(made.size(), 1u) << "who asks to end does not wait for an evaluation";
      }
      const TrainingResult second = train_whole(job, folder, made);
      EXPECT_EQ(made, whole);
      // On a slow disk a checkpoint is left out while the one before it is being written, the best one too.
      const size_t left_out =
          never_stopped.failed_saves.size() + first.failed_saves.size() + second.failed_saves.size();
      if (left_out > 0) continue;
      EXPECT_EQ(state::step_of(*state::CheckpointStore(folder).best()),
                state::step_of(*state::CheckpointStore(unstopped).best()));
    }
    fs::remove_all(unstopped);
  }
  EXPECT_GT(on_boundary, 0);
}

TEST_F(StoppedEvaluation, MakesTheBestCheckpointAfterAll) {
  // Steps are granted in pairs here, so that who asks to end after the seventh ends after the eighth, however slow.
  const job::Job job = job_on(ways()[3]);
  std::vector<Evaluated> made;
  const fs::path folder = folder_ / "run";
  const state::CheckpointStore store(folder);
  ASSERT_EQ(train(job, folder, made, [](int64_t told) { return told >= 7; }).steps, 2 * kEpochSteps);
  ASSERT_EQ(state::step_of(*store.best()), kEpochSteps);
  // Asked again before it has done anything: still due.
  EXPECT_EQ(train(job, folder, made, [](int64_t) { return true; }).steps, 2 * kEpochSteps);
  EXPECT_EQ(made.size(), 1u);
  // And once it has made a step.
  EXPECT_TRUE(train(job, folder, made, [](int64_t told) { return told > 2 * kEpochSteps; }).stopped);
  ASSERT_EQ(made.size(), 2u);
  ASSERT_LT(made[1].loss, made[0].loss);
  EXPECT_EQ(state::step_of(*store.best()), 2 * kEpochSteps);
  EXPECT_EQ(state::read_manifest(*store.best()).figures.at("loss"), made[1].loss);
}

}  // namespace
}  // namespace millrace::runtime
