// One worker: the sessions of the stages it runs, and the executor that carries its list of actions out. What is to be
// done, in which buffers and with whom, was decided before; here it is only done.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/comm/endpoint.h"
#include "millrace/comm/orders.h"
#include "millrace/data/dataset.h"
#include "millrace/data/loader.h"
#include "millrace/job/calendar.h"
#include "millrace/job/job.h"
#include "millrace/plan/plan.h"
#include "millrace/runtime/prefix_cache.h"
#include "millrace/runtime/saver.h"
#include "millrace/runtime/session.h"
#include "millrace/runtime/timeline.h"
#include "millrace/runtime/wiring.h"
#include "millrace/runtime/worker_record.h"

namespace millrace::runtime {

// What all workers of a run share.
struct RunFacts {
  job::Job job;
  std::string job_text;  // as it was given, before this machine filled in what it leaves open
  plan::Plan plan;
  schedule::Schedule shape;  // any training schedule of the plan: its slots are those of the run
  std::unique_ptr<data::Dataset> train_data, test_data;  // no test data: nothing is evaluated
  std::shared_ptr<const PrefixCache> prefix_cache = {};  // elastic.cache
  std::unique_ptr<data::Scorer> scorer;                  // what the test data makes of logits; none: nothing
  job::Calendar calendar;
  int64_t total_steps = 0;
  int layers = 0;                // that can be frozen
  int64_t first_step = 0;        // where the run begins: not at 0 if it goes on from a checkpoint
  int64_t first_samples = 0;     // seen before it
  bool evaluation_due = false;   // where the run begins, before its first step
  int64_t time_nodes_from = -1;  // step from which the time of every node is summed; -1: never

  double rate_of(int64_t step) const;  // of learning
  // Samples of a step: the last batch of an epoch may be short.
  int64_t rows_of_step(int64_t step) const;
  // The loss is computed by the replicas of the last stage.
  int loss_stage() const { return plan.pipeline.num_stages() - 1; }
};

// What the stage with the loss tells; from any worker's thread.
struct WorkerEvents {
  std::function<void(int64_t step, const Metrics&, std::span<const int64_t> samples)> on_step;
};

// Version of the weights that a minibatch's forward and backward read on a stage.
struct VersionUse {
  int stage = 0;
  int64_t minibatch = 0;
  int64_t forward = 0;
  int64_t backward = 0;
};

class Worker {
 public:
  Worker(const RunFacts& facts, const Wiring& wiring, int index, comm::Endpoint& endpoint, backend::Backend& backend,
         size_t memory_limit, const std::string& limit_reason);
  ~Worker();

  // What loading ahead and the sessions take.
  size_t planned_bytes() const;

  // Between steps; the next one is state.step.
  void load(const state::State& state);
  // The same from the workers of another training in this process; its next step is `step`.
  void load_from(const std::vector<const Session*>& before, const state::State& position, const state::Names& come);
  enum class Replicas { First, All };
  void store(state::State& state, Replicas which) const;  // the stages of which this is such a replica
  bool has_param(const std::string& name) const;

  // From here on snapshots can be saved. None are written where all its stages have another first replica.
  void prepare_saving(bool ahead, const Saver::OnSaved& on_saved);
  bool saves() const { return saver_ != nullptr; }
  void save(int64_t step, const std::filesystem::path& directory);
  double save_wait_s() const;  // that snapshots kept it, or its device, from going on

  // Runs this worker's list; its first micro-batch belongs to step `first_step`. Steps are begun as `limit(known)`
  // allows: it returns the step before which the list may go on, waiting until that is more than `known` or the end.
  // A worker that has a device to itself may tell of its last step only when it is to settle(): the caller does that
  // before it waits for anything, or asks for anything else.
  using Limit = std::function<comm::OrderBook::Limit(int64_t known)>;
  void train(const schedule::Schedule& schedule, int64_t first_step, const WorkerEvents& events,
             const Limit& limit = {});
  void settle();
  void finish_storing();  // of what frozen layers make
  Metrics evaluate(const schedule::Schedule& schedule);
  // Between steps: the squares of each layer's gradients since the last time, where they are watched.
  std::vector<double> take_layer_squares();

  int index() const { return index_; }
  Session& session(size_t i) { return *stages_[i].session; }
  const Session& session(size_t i) const { return *stages_[i].session; }
  size_t num_sessions() const { return stages_.size(); }
  int stage(size_t i) const { return stages_[i].stage; }
  int replica(size_t i) const { return stages_[i].replica; }
  const Timeline& timeline() const { return timeline_; }
  WorkerRecord record() const;
  double data_wait_s() const;
  // Samples whose frozen layers were not computed, because their output was kept, and those whose were.
  int64_t rows_fetched() const;
  int64_t rows_computed() const;
  // Whether keeping it pays, in words; empty: there is no cache, or this worker does not read the data. Between steps.
  std::string cache_verdict() const;
  std::optional<double> cache_lost_s() const;  // by keeping it, beyond what that saved, in the run so far
  double train_s() const { return train_s_; }
  const comm::Endpoint& endpoint() const { return endpoint_; }

  // Leaves what messages read and write allocated until the process ends.
  void abandon_memory();

  // What it is doing, for those who watch it from another thread.
  std::string doing() const;

  // Kept from now on, for as long as the vector has room.
  void log_versions(size_t capacity) { versions_.reserve(capacity); }
  const std::vector<VersionUse>& versions() const { return versions_; }

 private:
  // One end of an edge towards one peer.
  struct Port {
    struct Piece {
      int activation_tag = 0, gradient_tag = 0;
      size_t bytes = 0;
      std::vector<std::byte*> activation;  // per slot
      std::vector<std::byte*> gradient;    // per gradient slot; empty where none flows
      std::vector<std::byte*> evaluation;  // per slot
      std::vector<comm::Ticket> activation_ticket, gradient_ticket;
    };
    int edge = 0;
    int peer = 0;
    bool entering = false;  // activations come in here
    std::vector<Piece> pieces;
  };
  // Of a parameter that other stages read too.
  struct TiedGradient {
    int group = 0;
    std::span<float> memory;
  };
  // Memory of a device to which a micro-batch comes while another is computed, and where in it.
  struct Landing {
    std::byte* memory = nullptr;
    size_t bytes = 0;
    size_t features = 0, labels = 0, shortened = 0;
  };
  struct Stage {
    int stage = 0;
    int replica = 0;
    schedule::Rows rows;  // of a micro-batch
    graph::Graph graph;
    std::unique_ptr<Session> session;
    std::vector<Port> ports;
    std::vector<TiedGradient> tied;
    std::unique_ptr<PrefixPath> prefix;         // where what frozen layers make is kept
    std::unique_ptr<data::Loader> loader;       // empty where nothing is loaded, or one batch stays in the inputs
    std::unique_ptr<data::Loader> test_loader;  // while evaluating
    Landing landing;
    bool wants_next = false;  // its next micro-batch is not on its way yet
    int parts = 1;            // micro-batches of a batch
    int part = 0;             // that was taken last
    double brought_late_s = 0;
    const data::Batch* batch = nullptr;
    int64_t batch_number = -1;  // of the training step or the evaluation's micro-batch it is of
    int64_t first_update = 0;   // of the list that is running
    int64_t rows_in_update = 0;
    Metrics metrics;
    int forwards_in_step = 0;
    int forwards = 0, backwards = 0;  // of the list that is running, where its order may change
  };
  // An action with everything looked up.
  struct Bound {
    schedule::Kind kind{};
    schedule::Direction direction{};
    int stage = 0;  // in stages_
    int port = -1;
    int microbatch = 0;
    int version = 0;
    int part = 0;
    int needs = 0;  // the last micro-batch it has to do with
  };

  bool reads_samples(int stage) const;  // not one batch that stays
  void add_stage(int stage, int replica, backend::Backend& backend, size_t memory_limit, const std::string& reason);
  void plan_snapshot(size_t memory_limit);
  void add_port(Stage& stage, const Wiring& wiring, int edge, bool entering, int other_replica);
  void open_data(Stage& stage, int64_t first_step);
  void close_data(Stage& stage);
  void open_test_data(Stage& stage);
  // A forward or backward with what belongs to it; see ready_order.cpp.
  struct Unit {
    int stage = 0;  // in stages_
    bool backward = false;
    size_t begin = 0, end = 0;  // in the list
    size_t compute = 0;
    bool done = false;
  };
  // This worker's list of a schedule; its units where its order may change.
  struct List {
    const schedule::Schedule* schedule = nullptr;
    std::vector<Bound> actions;
    std::vector<Unit> units;
  };
  List& bind(const schedule::Schedule& schedule);

  int64_t step_of(int microbatch) const;
  int64_t number_of(int microbatch) const;  // counted over the run, or over one evaluation
  int64_t first_row(const Stage& stage, int microbatch) const;
  int64_t rows_of(const Stage& stage, int microbatch) const;
  int slot_of(const Stage& stage, int microbatch) const;
  int gradient_slot_of(const Stage& stage, int microbatch) const;
  Session::Place place_of(const Stage& stage, const Bound& action) const;
  backend::StepContext context_of(const Stage& stage, int microbatch, int64_t update) const;

  static std::vector<Unit> units_of(const std::vector<Bound>& list);
  bool can_run(const std::vector<Bound>& list, const Unit& unit);
  bool has_arrived(const Bound& action);
  void run_as_ready(List& list);

  bool may_run(const Bound& action);
  void await_copy();
  void run(const Bound& action);
  void forward(Stage& stage, const Bound& action);
  void backward(Stage& stage, const Bound& action);
  void message(Stage& stage, const Bound& action);
  void reduce(Stage& stage, const Bound& action);
  void step(Stage& stage, const Bound& action);
  void step_together(Stage& stage, int64_t update);
  int part_of(const Stage& stage, int microbatch) const;
  void take_data(Stage& stage, int microbatch, int slot);
  void bring_next(Stage& stage);
  void prepare_landing(Stage& stage);
  std::span<const int64_t> samples_of(const Stage& stage, int microbatch) const;
  void await_departures(Stage& stage, schedule::Direction direction, int slot);
  void finish_messages();
  void tell_metrics(Stage& stage, int microbatch);
  void score(const Stage& stage, int slot, int64_t rows);
  void add_figures(Metrics& metrics);

  // A step whose tasks were called; what it came to is told when the device is through with it.
  struct Flight {
    bool is_up = false;
    int64_t step = 0;
    int64_t first_mark = 0, last_mark = 0;
    int64_t began_ns = 0;
    std::vector<Span> marked;  // begin and end are marks
    std::vector<int64_t> samples;
  };
  bool flies() const;
  void after_compute();
  int64_t mark();
  void keep(const Span& span, bool later);
  void take_off(int64_t now_ns);
  void fly();
  void land(Flight& flight, int place);
  int64_t ns_between(int64_t first, int64_t second);

  template <typename Body>
  void timed(Activity activity, const Stage& stage, int64_t microbatch, Body&& body);

  const RunFacts& facts_;
  const int index_;
  comm::Endpoint& endpoint_;
  backend::Backend& backend_;
  int window_ = 1;
  std::vector<Stage> stages_;
  std::vector<List> lists_;
  std::vector<bool> passed_;  // reused: queues of units that were looked at
  Timeline timeline_;
  std::array<Flight, 2> flights_;
  int flight_ = 0;  // the last that took off
  int64_t marks_ = 0;
  double train_s_ = 0;
  double exposed_s_ = 0;  // waits for messages on their way
  // Part of what the endpoint counted.
  double evaluation_transfer_s_ = 0;
  std::vector<int64_t> evaluation_bytes_;
  std::vector<VersionUse> versions_;

  // Of the list that is running.
  int64_t first_step_ = 0;
  int limit_ = 0;  // micro-batches before it may be begun
  bool limit_is_end_ = true;
  const Limit* ask_limit_ = nullptr;
  bool evaluating_ = false;
  const WorkerEvents* events_ = nullptr;
  std::vector<float> scores_, logits_;  // of the evaluation that is running

  std::unique_ptr<Saver> saver_;
  bool copying_ = false;  // weights must not be changed yet
  double save_wait_s_ = 0;
  size_t snapshot_bytes_ = 0;  // of a device's memory, beside the sessions; 0: none

  std::atomic<const Bound*> current_{nullptr};
  std::atomic<int64_t> current_step_{0};  // the first of its list
};

}  // namespace millrace::runtime
