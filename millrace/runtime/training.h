// A job carried through to its last step: model, data, plan, schedules, and the workers of this process running them.
// What a user sees of it is up to an observer.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/comm/process.h"
#include "millrace/job/job.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/worker.h"
#include "millrace/runtime/worker_thread.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

struct StepReport {
  int64_t step = 0;  // counted from 0 over the whole run
  double epoch = 0;  // epochs finished when the step ends, with fraction
  double seconds = 0;
  double learning_rate = 0;
  int64_t samples = 0;
  Metrics metrics;
};

// Called on process 0, from the thread that runs the training; on_samples from the threads of the workers.
struct Observer {
  std::function<void(const StepReport&)> on_step = [](const StepReport&) {};
  std::function<void(double epoch, const Metrics&)> on_evaluation = [](double, const Metrics&) {};
  std::function<void(int64_t step, std::span<const int64_t> samples)> on_samples = {};
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
  // `process` must outlive the training.
  Training(const job::Job& job, comm::Process& process, const MachineLimit& limit, const OnMeasure& on_measure = {});
  ~Training();

  int64_t total_steps() const { return facts_.total_steps; }
  double steps_per_epoch() const { return facts_.steps_per_epoch; }
  int64_t parameters() const { return graph_.trainable_elements(); }
  double step_flops() const;  // as the direct algorithms would do them
  int threads() const { return threads_; }
  size_t planned_bytes() const;  // by the workers of this process
  bool remakes_blocks() const;   // a stage of this process computes its blocks again
  const graph::Graph& graph() const { return graph_; }
  const std::vector<std::string>& init_notes() const { return init_notes_; }  // of model.init, for the user
  // Of Metrics::figures, where the test data makes some.
  std::vector<std::string> figure_names() const {
    return facts_.scorer ? facts_.scorer->names() : std::vector<std::string>{};
  }
  const plan::Plan& plan() const { return facts_.plan; }
  const schedule::Schedule& shape() const { return facts_.shape; }
  // Those of this process.
  size_t num_workers() const { return workers_.size(); }
  Worker& worker(size_t i) { return *workers_[i].worker; }
  const Worker& worker(size_t i) const { return *workers_[i].worker; }
  Session& session() { return worker(0).session(0); }

  // From this step on every node's time is summed. Before run().
  void time_nodes_from(int64_t step) { facts_.time_nodes_from = step; }

  TrainingResult run(const Observer& observer);
  // Both complete on process 0; together with all other processes.
  state::State state();
  std::vector<WorkerRecord> records();

 private:
  data::Skipped skipped() const;  // by this process
  struct LocalWorker {
    std::unique_ptr<backend::Backend> backend;
    std::unique_ptr<comm::Endpoint> endpoint;
    std::unique_ptr<Worker> worker;
    std::unique_ptr<WorkerThread> thread;
  };
  // Steps that are run without a pause: one list of actions, again and again in synchronous modes.
  struct Segment {
    int64_t first = 0;
    int64_t steps = 0;
    bool evaluates = false;
  };

  void open_data();
  int workers_on_host() const;
  int sharers(int worker, int on_host) const;
  void make_schedules();
  void make_workers(const MachineLimit& limit, const OnMeasure& on_measure);
  void load_parameters();
  std::vector<Segment> segments() const;
  const schedule::Schedule& schedule_for(int64_t steps);
  void run_worker(Worker& worker, const std::vector<Segment>& segments, const Observer& observer);
  void watch(const Observer& observer, std::chrono::steady_clock::time_point began, TrainingResult& result);
  void on_all_workers(const std::function<void(LocalWorker&)>& work);

  comm::Process& process_;
  graph::Graph graph_;  // one micro-batch, fused
  RunFacts facts_;
  std::vector<std::string> init_notes_;
  std::unique_ptr<Wiring> wiring_;
  std::vector<std::unique_ptr<schedule::Schedule>> schedules_;  // one for each length of segment
  std::unique_ptr<schedule::Schedule> evaluation_;
  std::vector<LocalWorker> workers_;
  int threads_ = 1;
};

}  // namespace millrace::runtime
