// One worker's training session: the programs of a model prepared on a backend and bound to one block of memory
// that was laid out beforehand. A step then runs the bound tasks in order and decides nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/graph/program.h"
#include "millrace/runtime/memory_plan.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

struct SessionOptions {
  int microbatches = 1;  // the graph's batch is that of one micro-batch
  bool velocity = true;
  bool evaluates = true;  // also prepare the evaluation program
  uint64_t seed = 0;
  size_t memory_limit = 0;        // bytes that may be planned, with the loader's; 0: no limit
  size_t loader_bytes = 0;        // what loading a whole batch takes beside the session
  std::string limit_reason = {};  // where the limit comes from, for the message
};

// Sums over the rows that were samples.
struct Metrics {
  double loss_sum = 0;
  double top1 = 0;
  double top5 = 0;
  double rows = 0;

  double loss() const { return rows > 0 ? loss_sum / rows : 0; }
  Metrics& operator+=(const Metrics& other);
};

struct MemoryItem {
  std::string what;
  size_t bytes = 0;
};

struct MemoryReport {
  size_t planned_bytes = 0;  // persistent + arena
  size_t arena_bytes = 0;
  size_t arena_floor_bytes = 0;
  std::vector<MemoryItem> items;  // what is alive at the peak, by kind
};

struct NodeTime {
  const graph::Node* node = nullptr;
  std::string algorithm;
  double seconds = 0;  // summed over the timed steps
};

class Session {
 public:
  // Throws std::invalid_argument with the arithmetic if the plan exceeds the memory limit.
  Session(const graph::Graph& graph, backend::Backend& backend, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void load(const state::State& state);
  void store(state::State& state) const;

  // Where the next micro-batch goes: plain N x C x H x W, and labels.
  float* images() { return images_; }
  int32_t* labels() { return labels_; }

  // Runs a whole step. `fill(m)` puts micro-batch m into images() and labels() and returns its rows; `samples` is
  // the number of samples of the whole step.
  Metrics train_step(int64_t step, int64_t samples, double learning_rate, const std::function<int64_t(int)>& fill);
  Metrics evaluate(int64_t rows);

  // From now on the time of every node of the training program is summed; costs two clock reads a node.
  void time_nodes(bool on);
  const std::vector<NodeTime>& node_times() const { return node_times_; }

  const MemoryReport& memory() const { return memory_; }
  const graph::Program& training_program() const { return train_.program; }

  // A buffer of the training program, brought to the plain layout (tests and parity checks).
  std::vector<float> read_buffer(graph::BufferId id) const;

 private:
  struct Prepared {
    graph::Program program;
    std::vector<backend::Kernel> kernels;
    std::vector<size_t> buffer_bytes;
    MemoryPlan plan;
    std::vector<void*> buffers;
    std::vector<backend::Task> tasks;
  };

  Prepared prepare(graph::Program program);
  void check_limit(const Prepared& prepared, const std::vector<size_t>& scratch) const;
  void lay_out();
  void run(const std::vector<backend::Task>& tasks, size_t begin, size_t end, const backend::StepContext& context);
  Metrics take_metrics();

  graph::Graph graph_;
  backend::Backend& backend_;
  SessionOptions options_;
  Prepared train_;
  std::optional<Prepared> evaluate_;
  MemoryReport memory_;
  std::byte* memory_block_ = nullptr;
  size_t memory_bytes_ = 0;
  float* images_ = nullptr;
  int32_t* labels_ = nullptr;
  double* metrics_ = nullptr;
  bool timing_ = false;
  std::vector<NodeTime> node_times_;
};

}  // namespace millrace::runtime
