// What those who started a training see of it, and say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/plan/freeze_rule.h"
#include "millrace/runtime/session.h"

namespace millrace::runtime {

struct StepReport {
  int64_t step = 0;  // counted from 0 over the whole run
  int64_t total_steps = 0;
  double epoch = 0;  // epochs finished when the step ends, with fraction
  double seconds = 0;
  double learning_rate = 0;
  int64_t samples = 0;
  Metrics metrics;
};

// What is known when it is to be decided which layers stand still.
struct IntervalReport {
  plan::Decision decision;
  std::vector<double> squares;  // of each layer's gradients (plan::layer_squares); empty: they are not watched
};

// Called on process 0, from the thread that runs the training; on_samples from the threads of the workers.
struct Observer {
  std::function<void(const StepReport&)> on_step = [](const StepReport&) {};
  std::function<void(double epoch, const Metrics&)> on_evaluation = [](double, const Metrics&) {};
  std::function<void(int64_t step, std::span<const int64_t> samples)> on_samples = {};
  std::function<void(const std::string&)> on_note = [](const std::string&) {};  // for the user: one line
  std::function<bool()> wants_to_end = [] { return false; };                    // asked often: whether to save and stop
  std::filesystem::path checkpoints = {};  // where they go; empty: none are written
  bool stop_if_diverged = false;           // see job::OnDivergence; otherwise it goes on
  // elastic.freeze: decides, and says at which step another training takes over, -1: none does.
  std::function<void(const IntervalReport&)> on_interval = [](const IntervalReport&) {};
  std::function<int64_t()> hands_over_at = [] { return int64_t{-1}; };
  std::function<bool()> hands_over = [] { return true; };  // asked at that step: whether the other one can take over
  std::function<std::optional<plan::FreezeState>()> freezing = [] { return std::nullopt; };  // for checkpoints
  // A checkpoint that the training before it left to this one.
  bool saves_first = false, saves_best_first = false;
};

// A return to an earlier state, because the loss was lost.
struct Rollback {
  int64_t step = 0;  // whose loss it was
  double loss = 0;
  int64_t to = 0;  // the step whose state was taken up
};

struct TrainingResult {
  int64_t steps = 0;    // those before the run's own included, if it went on from a checkpoint
  int64_t samples = 0;  // likewise
  int64_t own_steps = 0, own_samples = 0;
  double train_s = 0;  // in steps, evaluation not counted
  double data_wait_s = 0;
  double save_wait_s = 0;    // that workers could not go on because of a snapshot, summed over workers
  bool diverged = false;     // ended early: the loss of the last step is not finite
  bool stopped = false;      // ended early: it was asked to
  bool handed_over = false;  // ended early: another training takes over
  // Handed over: at a step after which a checkpoint is to be written, and kept as the best.
  bool save_is_due = false, best_is_due = false;
  std::vector<Rollback> rollbacks;
  std::vector<std::string> failed_saves;
  int64_t saved_step = -1;  // of the newest checkpoint
  Metrics last;             // of the last finished stretch of steps: an epoch, or the whole run if shorter
  std::optional<Metrics> evaluation;
};

}  // namespace millrace::runtime
