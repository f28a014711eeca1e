// A run whose layers freeze: one training after another, each with more layers that stand still and with the plan that
// suits it. At a boundary the state goes from one to the next by global names, as it would through a checkpoint; what
// was trained, and how, is the same whatever plans were used. While a training has a while to go the next one is made
// ready beside it, so that only the state's way from one to the other is waited for.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/comm/process.h"
#include "millrace/plan/freeze_rule.h"
#include "millrace/runtime/next_training.h"
#include "millrace/runtime/run_records.h"
#include "millrace/runtime/training.h"

namespace millrace::runtime {

// One training of the run.
struct Stretch {
  double samples_per_s() const { return step_s > 0 ? static_cast<double>(batch) / step_s : 0; }

  int64_t first_step = 0, steps = 0;
  int frozen = 0;
  int stages = 0, workers = 0;
  int replicas = 0;  // of the first stage
  int64_t batch = 0;
  double step_s = 0;               // median
  double filling_step_s = 0;       // of those before the cache had seen every sample; 0: there is none
  double filled_step_s = 0;        // of those after that; 0: there were none
  double cached = 0;               // of its samples, the share whose frozen layers were not computed
  std::string cache_verdict = {};  // whether that pays, and why; empty: there is no cache
  int64_t begin_ns = 0;            // of process 0's steady clock
  int64_t end_ns = 0;              // of its last step or evaluation
};

// From one training to the next.
struct Transition {
  int64_t step = 0;  // the first of the next training
  std::string why;
  std::string plan;                // in words; empty: as before
  std::vector<double> squares;     // that were decided by
  double pause_s = 0;              // between the end of the one and the beginning of the other
  double waited_s = 0;             // of it, until the next training was ready
  int64_t moved_bytes = 0;         // of the state, from process to process
  int kept = 0;                    // of the frozen layers, those whose output the cache had already
  double predicted_step_s = 0;     // 0: nothing was predicted; with elastic.cache, of a cache that is full
  double predicted_filling_s = 0;  // with elastic.cache: of the first epoch, which fills it
  double predicted_before_s = 0;   // of the plan there was, with the same layers frozen
};

class Succession {
 public:
  // On process 0: the job with so many layers frozen, of which the cache will have the output of the first `kept`.
  // Throws std::invalid_argument where there is no way to run it.
  using Planner = std::function<NextPlan(const job::Job& now, int frozen, int kept)>;

  // `freezing`: where a run that goes on from a checkpoint stands.
  // `caches`: where elastic.cache is on; the first training has its first.
  Succession(std::unique_ptr<Training> first, const job::Job& job, comm::Process& process, const MachineLimit& limit,
             Planner planner, const plan::FreezeState& freezing, std::shared_ptr<PrefixCaches> caches = {});
  ~Succession();

  // Together with all other processes.
  TrainingResult run(const Observer& observer);

  Training& training() { return *now_.training; }  // the last
  const job::Job& job() const { return now_.job; }
  // The trainings of the run, and what lies between them: one fewer.
  const std::vector<Stretch>& stretches() const { return stretches_; }
  const std::vector<Transition>& transitions() const { return transitions_; }
  // After run(), on process 0: what the workers of each training did.
  const std::vector<std::vector<WorkerRecord>>& records() const { return records_; }

 private:
  void decide(const IntervalReport& report);
  void prepare();
  int kept_at_boundary() const;
  bool can_hand_over();
  void hand_over(const TrainingResult& result);
  void take(const TrainingResult& result);
  void take_step(const StepReport& step);
  void tell_gain(int64_t step, std::span<const double> step_s, double predicted_s, const std::string& when);
  std::string expected() const;
  bool fills_cache() const { return caches_ && freezing_.frozen > 0; }
  void begin_next();
  void begin_stretch();
  void end_stretch();
  void settle_cache();
  void gather_records();

  comm::Process& process_;
  const MachineLimit limit_;
  const Planner planner_;
  const std::shared_ptr<PrefixCaches> caches_;
  Observer observer_;
  plan::FreezeState freezing_;
  std::unique_ptr<comm::Process> beside_;  // where layers freeze: trainings take turns on the two
  comm::Process *running_ = nullptr, *idle_ = nullptr;
  NextTraining::Made now_;
  std::shared_future<NextPlan> next_plan_;
  std::shared_future<void> former_;  // the end of the training before
  std::unique_ptr<NextTraining> next_;
  TrainingResult total_;
  std::vector<Stretch> stretches_;
  RunRecords own_records_;
  std::vector<std::vector<WorkerRecord>> records_;
  int64_t begin_ns_ = 0;                 // of the training that runs
  std::vector<Transition> transitions_;  // the last may be still to come
  std::vector<double> step_s_;           // of the training that runs
  size_t filling_steps_ = 0;             // of them, those that came before the cache had seen every sample
  double filled_at_ = 0;                 // epochs
  int64_t next_step_ = 0;
  std::chrono::steady_clock::time_point busy_until_;  // the last step or evaluation that was told of
};

}  // namespace millrace::runtime
