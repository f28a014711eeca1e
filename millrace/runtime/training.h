// A job carried through to its last step: model, data, plan, schedules, and the workers of this process running them.
// What a user sees of it is up to an observer.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/comm/process.h"
#include "millrace/job/job.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/observer.h"
#include "millrace/runtime/state_exchange.h"
#include "millrace/runtime/worker.h"
#include "millrace/runtime/worker_thread.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

struct MachineLimit {
  size_t memory_bytes = 0;  // 0: none
  std::string source;
};

// Where a training goes on from: called on every process, for the parameters it needs.
using StateReader = std::function<state::State(const Session::Wanted&)>;

enum class Parameters {
  Now,
  Later,  // take_over() brings them
};

class Training {
 public:
  // `process` must outlive the training. Without `reader` parameters are as the job says.
  Training(const job::Job& job, comm::Process& process, const MachineLimit& limit, const OnMeasure& on_measure = {},
           const StateReader& reader = {}, Parameters when = Parameters::Now,
           std::shared_ptr<const PrefixCache> prefix_cache = {});
  ~Training();

  int64_t first_step() const { return facts_.first_step; }
  bool begins_with_evaluation() const { return facts_.evaluation_due; }
  int64_t total_steps() const { return facts_.total_steps; }
  double steps_per_epoch() const { return static_cast<double>(facts_.calendar.steps_per_epoch); }
  double epoch_at(int64_t step) const { return facts_.calendar.epoch_at(step); }
  // After run(): since when steps have the size of a batch, if the next training has that one.
  job::SizedSince since_for(int64_t batch) const;
  int64_t train_samples() const { return facts_.train_data->size(); }
  int layers() const { return facts_.layers; }  // that can be frozen
  int64_t parameters() const { return graph_.parameter_elements(); }
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

  // Goes on where another training, of whatever plan, has ended; together with all other processes. Each takes what it
  // has of it, or had, as own_state(). Returns how many bytes went from one to another.
  int64_t take_over(Training& before);
  int64_t take_over(state::State own);

  TrainingResult run(const Observer& observer);
  // Complete on process 0; together with all other processes. After run().
  state::State state();
  // What this process has of it, also that which others have the same of.
  state::State own_state();
  std::vector<WorkerRecord> own_records() const;  // of the workers of this process

 private:
  data::Skipped skipped() const;  // by this process
  state::State stored(Worker::Replicas which);
  struct LocalWorker {
    std::unique_ptr<backend::Backend> backend;
    std::unique_ptr<comm::Endpoint> endpoint;
    std::unique_ptr<Worker> worker;
    std::unique_ptr<WorkerThread> thread;
  };
  void make(const job::Job& job, const MachineLimit& limit, const OnMeasure& on_measure);
  void open_data();
  void set_calendar(const job::SizedSince& since);
  int workers_on_host() const;
  int sharers(int worker, int on_host) const;
  void make_schedules();
  void make_workers(const MachineLimit& limit, const OnMeasure& on_measure);
  void load_parameters(const StateReader& reader);
  Exchanged exchange_with(const std::vector<const Session*>& sessions, StateEnd end, const state::State& position,
                          state::Names& come);
  const schedule::Schedule& schedule_for(int64_t steps);
  void check_directory_is_shared();
  std::vector<int> prepare_saving();  // returns the workers that write a part of each checkpoint
  // Carries the orders of process 0 out, to the last; returns its number.
  size_t follow_orders(Worker& worker, const Observer& observer);
  void tell_squares(Worker& worker, int64_t step);
  void train(Worker& worker, const comm::Order& order, size_t number, const Observer& observer);
  void on_all_workers(const std::function<void(LocalWorker&)>& work);

  comm::Process& process_;
  graph::Graph graph_;  // one micro-batch, fused
  RunFacts facts_;
  std::vector<std::string> init_notes_;
  std::unique_ptr<Wiring> wiring_;
  std::mutex schedules_mutex_;
  std::vector<std::unique_ptr<schedule::Schedule>> schedules_;  // one for each length of list
  std::unique_ptr<schedule::Schedule> evaluation_;
  std::vector<LocalWorker> workers_;
  bool connects_ = false;
  int threads_ = 1;
  std::filesystem::path checkpoints_;
  struct {
    int64_t step = 0, samples = 0;
  } end_;  // where the last run ended
};

}  // namespace millrace::runtime
