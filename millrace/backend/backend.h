// What a device can do: prepare a node once, bind it to memory once, run it many times.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/backend/memory.h"
#include "millrace/graph/program.h"

namespace millrace::backend {

// What changes from step to step, read by the kernels that need it.
struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_row = 0;       // of this micro-batch in the step's batch
  int64_t rows = 0;            // rows of this micro-batch that are samples; the rest is padding
  double inverse_samples = 1;  // one over the samples of the whole step: the weight of a sample's gradient
  int64_t update = 0;          // that is made, from the start of training on
  float learning_rate = 0;
  bool again = false;  // forward is run once more for its values: what it counts besides stays as it is

  bool operator==(const StepContext&) const = default;
};

// Where a kernel's operands lie: at multiples of 256 bytes.
struct Bindings {
  std::vector<void*> reads;
  std::vector<void*> writes;
  void* scratch = nullptr;

  template <typename T>
  const T* read(int i) const {
    return static_cast<const T*>(reads[i]);
  }
  template <typename T>
  T* write(int i) const {
    return static_cast<T*>(writes[i]);
  }
};

// One bound kernel: everything but the step is decided.
using Task = std::function<void(const StepContext&)>;

struct Kernel {
  std::string algorithm;
  size_t scratch_bytes = 0;
  std::function<Task(const Bindings&)> bind;
};

// A node with what a backend may ask about it.
struct NodeView {
  const graph::Graph& graph;
  const graph::Program& program;
  const graph::Node& node;

  const Shape& read(int i) const { return program.read_shape(node, i); }
  const Shape& write(int i) const { return program.write_shape(node, i); }
  int num_reads() const { return static_cast<int>(node.reads.size()); }
  int num_writes() const { return static_cast<int>(node.writes.size()); }
  template <typename A>
  const A& attrs() const {
    return std::get<A>(node.attrs);
  }
  const graph::Param& param(graph::BufferId buffer) const { return graph.params[program.buffers[buffer].param]; }
};

class Outlet;

class Backend : public Memory {
 public:
  virtual std::string name() const = 0;

  // Bytes the buffer takes in the layout this backend keeps it in.
  virtual size_t bytes(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer) = 0;

  virtual Kernel prepare(const NodeView& view) = 0;

  // Nodes from this one on that one kernel does at once; `limit` at most. Its operands are theirs, one after another.
  virtual size_t together(const graph::Program& /*program*/, size_t /*node*/, size_t /*limit*/) const { return 1; }
  virtual Kernel prepare_together(const std::vector<NodeView>& views) { return prepare(views[0]); }

  // Between the backend's layout and the plain one (row-major, f32): parameters, statistics and optimizer slots
  // in and out, and any other buffer for tests.
  virtual void upload(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer,
                      std::span<const float> plain, void* device) = 0;
  virtual void download(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer,
                        const void* device, std::span<float> plain) = 0;

  // A buffer of another backend's, and where it lies, for this one's to take its numbers from.
  struct Foreign {
    Backend& backend;
    const graph::Graph& graph;
    const graph::Program& program;
    graph::BufferId buffer;
    const void* memory;
  };
  // Copies it as it lies, where both keep it alike and one can reach the other's memory; false: that is not so.
  virtual bool take(const Foreign& /*from*/, const graph::Graph& /*graph*/, const graph::Program& /*program*/,
                    graph::BufferId /*buffer*/, void* /*device*/) {
    return false;
  }

  // A micro-batch from the host: features as a data set writes them (plain N x C x H x W floats, or i32 tokens), or
  // labels (i32).
  virtual void put_input(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer,
                         const void* host, void* device) {
    copy(device, host, bytes(graph, program, buffer));
  }

  // Bytes as the device keeps them, in the order of the tasks.
  virtual void put(void* device, const void* host, size_t bytes) { copy(device, host, bytes); }

  // What put_input() or put() is given next from `host`: a device that computes beside the host begins to bring it into
  // `landing`, as many bytes of its own memory, and nobody waits for it. The host's memory must stay as it is until
  // await_brought() has returned.
  virtual bool brings() const { return false; }
  virtual void bring(const void* /*host*/, size_t /*bytes*/, void* /*landing*/) {}
  virtual void await_brought() {}
  virtual double brought_late_s() { return 0; }  // that tasks were kept waiting for it, as far as is known

  // Bytes of the device, in the order of the tasks, and zeros in their place; they are there once the tasks that were
  // called before were waited for. `host` is pinned.
  virtual void take(void* host, void* device, size_t bytes) {
    copy(host, device, bytes);
    zero(device, bytes);
  }

  // Host memory that inputs come from again and again: a device may shorten its way there, until unpin().
  virtual void pin(std::span<std::byte> /*host*/) {}
  virtual void unpin(std::span<std::byte> /*host*/) {}

  // A device may run its tasks later than they are called. begin() says what those that follow are run with, wait()
  // returns when all are done.
  virtual void begin(const StepContext& /*context*/) {}
  virtual void wait() {}
  virtual bool idle() { return true; }  // whether all that was called is done

  // Points in the order of the tasks, and the time between two of them once both were passed (wait_for).
  virtual void mark(size_t index) {
    if (index >= marks_.size()) marks_.resize(index + 1);
    marks_[index] = std::chrono::steady_clock::now();
  }
  virtual void wait_for(size_t /*mark*/) {}
  virtual double seconds_between(size_t first, size_t second) {
    return std::chrono::duration<double>(marks_[second] - marks_[first]).count();
  }

  // Names for what follows, in the timelines of a device's own tools.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}

  // Tasks that are always run in one order may be recorded as one, where the device can: what is called between
  // begin_recording() and end_recording() is not run but kept; null: something disturbed it, and nothing was kept.
  virtual bool records() const { return false; }
  virtual void begin_recording() {}
  virtual std::shared_ptr<const void> end_recording() { return nullptr; }
  virtual void play(const void* /*recording*/) {}

  // Zeroed.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;

  virtual std::unique_ptr<Outlet> make_outlet();

 private:
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

// A way out of a device's memory beside the tasks: another thread than the worker's reads buffers back while the worker
// goes on. The host's memory can be read by any thread as it is.
class Outlet {
 public:
  explicit Outlet(Backend& backend) : backend_(backend) {}
  virtual ~Outlet() = default;
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // Both from the worker's thread, and not while tasks are recorded. A copy within the device's memory comes after the
  // tasks that were called before it and before those that are called next; nobody waits for it here.
  virtual void copy(void* to, const void* from, size_t bytes) { backend_.copy(to, from, bytes); }
  // What is downloaded from now on is as the tasks and copies called so far leave it.
  virtual void follow() {}

  // From one thread at a time, as Backend::download().
  virtual void download(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer,
                        const void* device, std::span<float> plain) {
    backend_.download(graph, program, buffer, device, plain);
  }
  // Bytes as the device keeps them; `host` is pinned.
  virtual void fetch(void* host, const void* device, size_t bytes) { backend_.copy(host, device, bytes); }
  // What the copies before the last follow() kept tasks waiting, beyond the time of their calls; after a download.
  virtual double copy_s() { return 0; }

 private:
  Backend& backend_;
};

inline std::unique_ptr<Outlet> Backend::make_outlet() { return std::make_unique<Outlet>(*this); }

}  // namespace millrace::backend
