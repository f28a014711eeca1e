// One replica of a stage on one worker: the programs of its operators prepared on a backend and bound to one block of
// memory that was laid out beforehand. An action then runs bound tasks in order and decides nothing. A model on one
// worker is one stage with one of everything.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/graph/prefix.h"
#include "millrace/graph/program.h"
#include "millrace/memory/memory_plan.h"
#include "millrace/memory/stage_layout.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

// Whether the insides of the model's blocks are kept for backward, or made again.
enum class Blocks { Kept, Again, AgainIfShort };

struct SessionOptions {
  int microbatches = 1;  // the graph's batch is that of one micro-batch
  graph::UpdateRule rule = {};
  bool evaluates = true;  // also prepare the evaluation program
  uint64_t seed = 0;
  size_t memory_limit = 0;        // bytes that may be planned, with the loader's; 0: no limit
  size_t loader_bytes = 0;        // what loading a whole batch takes beside the session
  size_t snapshot_bytes = 0;      // and what saving takes of the same memory
  std::string limit_reason = {};  // where the limit comes from, for the message
  graph::StageSlice stage = {};
  memory::Copies copies = {};
  bool recompute = false;  // run forward again before backward, if several micro-batches are in flight
  Blocks blocks = Blocks::Kept;
  bool replicated = false;  // gradients are summed over replicas before the update
  graph::Style style = {};
  double loss_scale = 32768;  // where it starts, with f16
  size_t bucket_bytes = 25 << 20;
};

// Sums over the rows that have labels; and of an evaluation what the data set makes of all samples (data/scorer.h).
struct Metrics {
  double loss_sum = 0;
  double top1 = 0;
  double top5 = 0;
  double rows = 0;
  std::array<double, 4> figures{};

  double loss() const { return rows > 0 ? loss_sum / rows : 0; }
  Metrics& operator+=(const Metrics& other);
};

struct MemoryReport {
  size_t planned_bytes = 0;
  size_t arena_bytes = 0;
  size_t arena_floor_bytes = 0;
  std::vector<memory::MemoryItem> items;  // what is alive at the peak, by kind
};

struct NodeTime {
  const graph::Node* node = nullptr;
  std::string algorithm;
  double seconds = 0;  // summed over the timed steps
  size_t scratch_bytes = 0;
};

// Memory that is sent or received: `row_bytes` for each row of the micro-batch.
struct Wire {
  std::byte* data = nullptr;
  size_t row_bytes = 0;
};

class Session {
 public:
  // Throws std::invalid_argument with the arithmetic if the plan exceeds the memory limit.
  Session(const graph::Graph& graph, backend::Backend& backend, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Leaves its memory allocated when it is destroyed.
  void abandon_memory() { memory_block_ = nullptr; }

  // Between steps. Training goes on from the newest version; older ones are taken as far as there are any.
  void load(const state::State& state);
  void store(state::State& state) const;
  // Before that: memory that was never touched is slow to write to.
  void touch();
  // The same from sessions of another training in this process, which stand still and have one version of their weights
  // each. No more than a parameter at a time lies in between. What has `come` was put() before, from elsewhere.
  void load_from(const std::vector<const Session*>& before, const state::State& position,
                 const state::Names& come = {});
  void store_position(state::State& state) const;  // what belongs to no tensor
  bool has_param(const std::string& name) const;

  // A tensor at a time, by its kind in state::kKinds: those it has, and those it is to be given.
  void list(state::Names& names) const;
  bool wants(size_t kind, const std::string& name) const;
  bool read(size_t kind, const std::string& name, std::vector<float>& plain) const;
  void put(size_t kind, const std::string& name, const std::vector<float>& plain);

  // What a state is stored from, as it was between two steps.
  struct Source {
    const std::byte* memory = nullptr;  // state_bytes(), laid out as in the session
    int64_t updates = 0;                // that were made to it
    int64_t updates_before = 0;
  };
  size_t state_bytes() const { return layout_->state_bytes(); }
  Source source() const;                                            // its own memory: must not change while it is read
  Source copy_state(backend::Outlet& outlet, std::byte* to) const;  // a copy in the device's memory
  // From any thread. In two parts, into tensors that are used again: what forward writes, and what it only reads.
  void store_forward_state(const Source& source, backend::Outlet& outlet, state::State& state) const;
  using Wanted = std::function<bool(const std::string& param)>;
  void store_weights(const Source& source, backend::Outlet& outlet, state::State& state,
                     const Wanted& wanted = {}) const;

  // Where a micro-batch goes: features as a data set writes them, and labels. Null where the stage does not read them.
  // The host may write there if the backend's memory is on it; put_input() copies anywhere.
  void* features(int slot = 0) const { return find(train_.program.features, {slot, 0, 0}); }
  int32_t* labels(int slot = 0) const { return static_cast<int32_t*>(find(train_.program.labels, {slot, 0, 0})); }

  void put_input(int slot, const void* features, const int32_t* labels);

  // Memory of the values that cross to other stages, and of their gradients. Evaluation has a layout of its own.
  enum class Use { Training, Evaluation };
  Wire input(size_t index, int slot, Use use = Use::Training) const {
    return wire(use, program(use).inputs[index].buffer, {slot, 0, 0});
  }
  Wire output(size_t index, int slot, Use use = Use::Training) const {
    return wire(use, program(use).outputs[index].buffer, {slot, 0, 0});
  }
  Wire input_gradient(size_t index, int slot) const {
    return wire(Use::Training, train_.program.inputs[index].gradient, {0, slot, 0});
  }
  Wire output_gradient(size_t index, int slot) const {
    return wire(Use::Training, train_.program.outputs[index].gradient, {0, slot, 0});
  }

  // The actions. Versions and updates count from the start of training; an update writes version update + 1.
  struct Place {
    int slot = 0;
    int gradient_slot = 0;
    int64_t version = 0;  // weights to read
    int64_t update = 0;   // that the gradient belongs to
  };
  static constexpr int kWhole = -1;
  void forward(const Place& place, const backend::StepContext& context);
  // From behind the layers whose output is known (put_prefix), if any; `after` is called when that of `made` is there.
  template <typename After>
  void forward(const Place& place, const backend::StepContext& context, const graph::PrefixEnd* known,
               const graph::PrefixEnd* made, After&& after) {
    size_t begin = known ? known->node : 0;
    if (made) {
      run(train_, begin, made->node, place, context);
      after();
      begin = made->node;
    }
    run(train_, begin, train_.program.first_backward, place, context);
  }
  // What frozen layers make of the rows of a micro-batch, as the device keeps it, row by row.
  std::optional<graph::PrefixEnd> prefix_end(int layers) const {
    return runs_again_ ? std::nullopt : graph::prefix_end(graph_, train_.program, layers);
  }
  size_t prefix_row_bytes(const graph::PrefixEnd& end) const {
    return train_.buffer_bytes[end.output] / static_cast<size_t>(graph_.batch());
  }
  void put_prefix(const graph::PrefixEnd& end, int slot, const std::byte* rows);
  void take_prefix(const graph::PrefixEnd& end, int slot, std::byte* rows) const;
  const std::byte* prefix_memory(const graph::PrefixEnd& end, int slot) const {
    return static_cast<const std::byte*>(address(0, end.output, {slot, 0, 0}));
  }
  // All of it, or up to a bucket's end. `after(pass)` is called after each stretch of nodes of one pass.
  template <typename After>
  void backward(int bucket, const Place& place, const backend::StepContext& context, After&& after) {
    const bool whole = bucket == kWhole;
    if (runs_again_ && (whole || bucket == 0)) {
      backend::StepContext again = context;
      again.again = true;
      run(train_, 0, train_.program.first_backward, place, again);
      after(graph::Pass::Forward);
    }
    const size_t begin = whole || bucket == 0 ? train_.program.first_backward : buckets_[bucket - 1].end;
    const size_t end = whole ? train_.program.first_update : buckets_[bucket].end;
    if (!backend_.on_host()) {  // tasks run later than they are called: their passes cannot be told apart here
      run(train_, begin, end, place, context);
      after(graph::Pass::InputGrad);
      return;
    }
    for (const Stretch& stretch : stretches_) {
      if (stretch.begin < begin || stretch.begin >= end) continue;
      run(train_, stretch.begin, stretch.end, place, context);
      after(stretch.pass);
    }
  }
  void backward(int bucket, const Place& place, const backend::StepContext& context) {
    backward(bucket, place, context, [](graph::Pass) {});
  }
  // An update bucket by bucket, or as a whole - as it must be where something is to be known of all gradients first:
  // then sum_gradients(), tied gradients summed over stages, check_gradients(), the agreement summed over stages.
  bool updates_whole() const { return train_.program.updates_whole(); }
  bool watches() const { return train_.program.watch != graph::kNone; }
  // The sum of squares of each parameter's gradients since they were last put to zero; empty: they are not watched.
  std::vector<float> watched() const;
  void put_watched(const std::vector<float>& squares);
  bool has_agreement() const { return train_.program.agreement != graph::kNone; }
  void sum_gradients(const backend::StepContext& context);
  void check_gradients(const backend::StepContext& context);
  void update(int bucket, int64_t update, const backend::StepContext& context);
  std::span<float> agreement() const;  // what is summed over stages; from the second number on, squares
  std::span<float> tied_gradient(graph::ParamId param) const;
  void evaluate(int slot, int64_t rows);
  Metrics take_metrics();
  // The same in two parts, for a device that is not waited for in between: there are two places for what is on its way.
  void send_metrics(size_t place);
  Metrics landed_metrics(size_t place) const;
  // Of all rows of what was evaluated last.
  void read_logits(int slot, std::vector<float>& logits) const;
  int64_t updates() const { return updates_; }
  bool remakes_blocks() const { return remakes_blocks_; }

  // Gradients that are summed over replicas; the last bucket ends with the running statistics.
  size_t num_buckets() const { return buckets_.size(); }
  std::span<float> bucket(int index) const { return buckets_[index].memory; }
  std::span<float> statistics() const { return statistics_; }

  // A whole step on one worker. `fill(m)` puts micro-batch m into features() and labels() and returns its rows;
  // `samples` is the number of samples of the whole step.
  Metrics train_step(int64_t step, int64_t samples, double learning_rate, const std::function<int64_t(int)>& fill);
  Metrics evaluate(int64_t rows);

  // From now on the time of every node of the training program is summed, from zero; costs two clock reads a node.
  void time_nodes(bool on);
  const std::vector<NodeTime>& node_times() const { return node_times_; }

  const MemoryReport& memory() const { return memory_; }
  const graph::Program& training_program() const { return train_.program; }
  size_t buffer_bytes(graph::BufferId id) const { return train_.buffer_bytes[id]; }  // of the training program
  const graph::Graph& graph() const { return graph_; }
  const SessionOptions& options() const { return options_; }

  // A buffer of the training program, brought to the plain layout (tests and parity checks).
  std::vector<float> read_buffer(graph::BufferId id) const;

 private:
  // The tasks of a node, one for each combination of copies it touches; none where another node's do its work too.
  struct BoundNode {
    size_t first_task = 0;
    int slot_stride = 0, gradient_stride = 0, version_stride = 0;
    bool updates = false;  // its version is the update's, not the one that is read
  };
  struct Prepared {
    graph::Program program;
    std::vector<backend::Kernel> kernels;
    std::vector<size_t> buffer_bytes;
    memory::MemoryPlan plan;
    std::vector<size_t> together;  // nodes that this one's kernel does, itself included; 0: an earlier one's does it
    std::vector<BoundNode> nodes;
    std::vector<backend::Task> tasks;
    bool has_task(size_t node) const { return together[node] > 0; }
  };
  struct BoundBucket {
    size_t end = 0;                            // node
    size_t first_update = 0, last_update = 0;  // nodes that update its weights, if they are updated by themselves
    std::span<float> memory;
  };

  // Nodes of one pass that follow each other in backward; none goes past the end of a bucket.
  struct Stretch {
    size_t begin = 0, end = 0;
    graph::Pass pass{};
  };

  // A stretch of nodes that is run as one.
  struct Recording {
    const Prepared* prepared = nullptr;
    size_t begin = 0, end = 0;
    int slot = 0, gradient_slot = 0, version = 0, updated = 0;
    std::shared_ptr<const void> tasks;  // empty: was run once, to be recorded the next time
  };

  graph::Program training_program(bool remakes_blocks) const;
  bool fits(const graph::Program& program) const;
  Prepared prepare(graph::Program program);
  size_t largest_group(const graph::Program& program, size_t node) const;
  void check_limit(const Prepared& prepared, const std::vector<size_t>& scratch) const;
  memory::MemoryPlan plan(const graph::Program& program, const std::vector<size_t>& bytes,
                          const std::vector<size_t>& scratch) const;
  void allocate();
  void bind(Prepared& prepared, size_t index);
  void bind_buckets();
  void load_position(const state::State& state);
  graph::BufferId state_buffer(size_t kind, const std::string& name) const;
  void read(const Source& source, backend::Outlet& outlet, graph::BufferId id, int64_t version,
            std::vector<float>& plain) const;
  void find_stretches();
  void* address(size_t program, graph::BufferId id, const memory::Copy& copy) const;
  void* find(graph::BufferId id, const memory::Copy& copy) const {
    return id == graph::kNone ? nullptr : address(0, id, copy);
  }
  const graph::Program& program(Use use) const { return use == Use::Training ? train_.program : evaluate_->program; }
  Wire wire(Use use, graph::BufferId id, const memory::Copy& copy) const;
  int ring(int64_t version) const { return static_cast<int>(version % options_.copies.versions); }
  void run(const Prepared& prepared, size_t begin, size_t end, const Place& place, const backend::StepContext& context);
  void run_timed(const Prepared& prepared, size_t begin, size_t end, const Place& place,
                 const backend::StepContext& context);
  void run_recorded(const Prepared& prepared, size_t begin, size_t end, const Place& place,
                    const backend::StepContext& context);
  std::shared_ptr<const void> record(const std::function<void()>& run_tasks);
  const backend::Task& task(const Prepared& prepared, size_t node, const Place& place) const;

  graph::Graph graph_;
  backend::Backend& backend_;
  SessionOptions options_;
  Prepared train_;
  std::optional<Prepared> evaluate_;
  std::unique_ptr<memory::StageLayout> layout_;
  MemoryReport memory_;
  std::byte* memory_block_ = nullptr;
  std::vector<BoundBucket> buckets_;
  std::vector<Stretch> stretches_;
  std::span<float> statistics_;
  double* metrics_ = nullptr;
  alignas(64) std::array<std::array<double, graph::kNumMetrics>, 2> landed_{};
  int64_t updates_ = 0;
  int64_t updates_before_ = 0;  // of the training that the loaded state comes from
  bool remakes_blocks_ = false;
  bool runs_again_ = false;
  bool timing_ = false;
  std::vector<NodeTime> node_times_;
  std::vector<Recording> recordings_;
};

}  // namespace millrace::runtime
