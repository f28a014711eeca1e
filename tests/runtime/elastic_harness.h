// Runs whose layers freeze, which may be asked to end and go on from what they saved.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "millrace/job/reader.h"
#include "millrace/runtime/succession.h"
#include "millrace/state/checkpoint_store.h"
#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {

inline job::Job freezing_job(job::Freeze freeze) {
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
  std::vector<double> test_losses;
  std::vector<Stretch> stretches;
};

class ElasticTraining : public state::TemporaryFolder {
 protected:
  // From the newest checkpoint of the folder, if there is one.
  Ran train(job::Job job, const std::filesystem::path& checkpoints, int64_t stop_at = -1) {
    const std::vector<std::filesystem::path> saved = std::filesystem::exists(checkpoints)
                                                         ? state::CheckpointStore(checkpoints).list()
                                                         : std::vector<std::filesystem::path>();
    plan::FreezeState freezing;
    StateReader reader;
    if (!saved.empty()) {
      const std::filesystem::path from = saved.back();
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
    observer.on_evaluation = [&](double, const Metrics& metrics) { ran.test_losses.push_back(metrics.loss()); };
    ran.result = succession.run(observer);
    ran.state = succession.training().state();
    ran.stretches = succession.stretches();
    return ran;
  }
};

}  // namespace millrace::runtime
