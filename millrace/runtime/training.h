// A job carried through to its last step on one worker: model, data, session, and the loop over them. What a user
// sees of it is up to an observer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/backend/backend.h"
#include "millrace/data/dataset.h"
#include "millrace/data/loader.h"
#include "millrace/job/job.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/session.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

struct StepReport {
  int64_t step = 0;  // counted from 0 over the whole run
  double epoch = 0;  // epochs finished when the step ends, with fraction
  double seconds = 0;
  double learning_rate = 0;
  Metrics metrics;
};

struct Observer {
  std::function<void(const StepReport&)> on_step = [](const StepReport&) {};
  std::function<void(double epoch, const Metrics&)> on_evaluation = [](double, const Metrics&) {};
  bool stop_if_diverged = false;  // end the run at a step whose loss is not finite
};

struct TrainingResult {
  int64_t steps = 0;
  int64_t samples = 0;
  double train_s = 0;  // in steps, evaluation not counted
  double data_wait_s = 0;
  bool diverged = false;  // ended early: the loss of the last step is not finite
  Metrics last;           // of the last finished stretch of steps: an epoch, or the whole run if shorter
  std::optional<Metrics> evaluation;
};

struct MachineLimit {
  size_t memory_bytes = 0;  // 0: none
  std::string source;
};

class Training {
 public:
  Training(const job::Job& job, const MachineLimit& limit, const OnMeasure& on_measure = {});
  ~Training();

  int64_t total_steps() const { return total_steps_; }
  double steps_per_epoch() const { return steps_per_epoch_; }
  int64_t parameters() const { return graph_.trainable_elements(); }
  double step_flops() const;  // as the direct algorithms would do them
  int threads() const { return threads_; }
  size_t planned_bytes() const;
  Session& session() { return *session_; }
  const graph::Graph& graph() const { return graph_; }

  TrainingResult run(const Observer& observer);
  Metrics evaluate();
  state::State state() const;

 private:
  void load_parameters();
  void fill_directly();

  job::Job job_;
  graph::Graph graph_;  // one micro-batch, fused
  std::unique_ptr<data::Dataset> train_data_, test_data_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<data::Loader> loader_;  // empty when the data is one batch that stays in the session's input
  double steps_per_epoch_ = 1;
  int64_t total_steps_ = 0;
  int threads_ = 1;
};

}  // namespace millrace::runtime
