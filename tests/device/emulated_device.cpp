// A GPU that is none: a library that stands where the CUDA backend's does and computes with the reference backend's
// kernels, but in the way of a device. What is called on it is done later, on a thread of its own; its memory cannot be
// reached by the host; inputs come and outputs leave beside the tasks. So everything that is built on a device - steps
// that are called ahead, recordings, snapshots, what frozen layers make - can be tested where there is no GPU, and
// under every sanitizer. What CUDA would take amiss fails here.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "device/stream.h"
#include "millrace/backend/cuda_library.h"
#include "millrace/backend/reference/reference_backend.h"
#include "millrace/base/error.h"

namespace millrace::device {
namespace {

using backend::Bindings;
using backend::Kernel;
using backend::NodeView;
using backend::StepContext;
using backend::Task;

// The device's addresses are none of the host's: who follows one there has a fault. Only the device takes it back.
constexpr uintptr_t kFar = uintptr_t{1} << 47;

template <typename T>
T* away(T* host) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(host) + kFar);
}
template <typename T>
T* here(T* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return address < kFar ? memory : reinterpret_cast<T*>(address - kFar);
}

Bindings here(const Bindings& bindings) {
  Bindings mine = bindings;
  for (void*& memory : mine.reads) memory = here(memory);
  for (void*& memory : mine.writes) memory = here(memory);
  mine.scratch = here(mine.scratch);
  return mine;
}

using Tasks = std::vector<std::function<void()>>;

// Inputs on their way beside the tasks, each to a landing of its own.
class Inlet {
 public:
  explicit Inlet(Stream& tasks) : tasks_(tasks) {}

  void bring(const void* host, size_t bytes, void* landing) {
    Piece& piece = pieces_[landing];
    if (!piece.host && piece.read) stream_.follow(piece.read);
    stream_.call([=] { std::memcpy(here(landing), host, bytes); });
    piece.there = stream_.record();
    piece.host = host;
    piece.bytes = bytes;
  }
  // body(landing) is done with the tasks, once it is there.
  bool use(const void* host, size_t bytes, const std::function<void(const void*)>& body) {
    for (auto& [landing, piece] : pieces_) {
      if (piece.host != host || piece.bytes < bytes) continue;
      const EventPtr there = piece.there;
      tasks_.call([this, there] {
        const auto asked = Event::Clock::now();
        there->await();
        late_ns_ += std::max<int64_t>(0, (there->at() - asked).count());
      });
      tasks_.call([body, at = here(landing)] { body(at); });
      piece.read = tasks_.record();
      piece.host = nullptr;
      return true;
    }
    return false;
  }
  void await() { stream_.wait(); }
  void forget(std::span<const std::byte> host) {
    for (auto& [landing, piece] : pieces_) {
      const auto* at = static_cast<const std::byte*>(piece.host);
      if (at && at >= host.data() && at < host.data() + host.size()) piece.host = nullptr;
    }
  }
  double late_s() const { return static_cast<double>(late_ns_.load()) * 1e-9; }

 private:
  struct Piece {
    const void* host = nullptr;  // null: what lies there was used
    size_t bytes = 0;
    EventPtr there, read;
  };
  Stream& tasks_;
  std::map<void*, Piece> pieces_;
  std::atomic<int64_t> late_ns_{0};
  Stream stream_{2};
};

class DeviceOutlet final : public backend::Outlet {
 public:
  DeviceOutlet(backend::Backend& device, backend::Backend& kernels, Stream& tasks)
      : Outlet(device), kernels_(kernels), tasks_(tasks) {}

  void copy(void* to, const void* from, size_t bytes) override {
    tasks_.call([to = here(to), from = here(from), bytes] { std::memcpy(to, from, bytes); });
  }
  void follow() override {
    const EventPtr ready = tasks_.record();
    const std::lock_guard lock(mutex_);
    ready_ = ready;
  }
  void download(const graph::Graph& graph, const graph::Program& program, graph::BufferId id, const void* device,
                std::span<float> plain) override {
    await();
    kernels_.download(graph, program, id, here(device), plain);
  }
  void fetch(void* host, const void* device, size_t bytes) override {
    await();
    std::memcpy(host, here(device), bytes);
  }

 private:
  void await() {
    EventPtr ready;
    {
      const std::lock_guard lock(mutex_);
      ready = ready_;
    }
    if (ready) ready->await();
  }

  backend::Backend& kernels_;
  Stream& tasks_;
  std::mutex mutex_;
  EventPtr ready_;
};

class EmulatedDevice final : public backend::Backend {
 public:
  explicit EmulatedDevice(const backend::OptimizerOptions& optimizer)
      : kernels_(backend::make_reference_backend(optimizer)) {}
  ~EmulatedDevice() override { tasks_.record()->await(); }
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  std::string name() const override { return "emulated"; }
  bool on_host() const override { return false; }

  size_t bytes(const graph::Graph& graph, const graph::Program& program, graph::BufferId id) override {
    return kernels_->bytes(graph, program, id);
  }

  Kernel prepare(const NodeView& view) override { return prepare_together({view}); }

  size_t together(const graph::Program& program, size_t node, size_t limit) const override {
    const graph::OpKind kind = program.nodes[node].kind;
    if (!graph::is_step(kind) && kind != graph::OpKind::SumSquares) return 1;
    size_t count = 1;
    while (count < limit && program.nodes[node + count].kind == kind) ++count;
    return count;
  }

  Kernel prepare_together(const std::vector<NodeView>& views) override {
    struct Part {
      Kernel kernel;
      int num_reads, num_writes;
    };
    std::vector<Part> parts;
    Kernel all;
    for (const NodeView& view : views) {
      parts.push_back({kernels_->prepare(view), view.num_reads(), view.num_writes()});
      all.scratch_bytes = std::max(all.scratch_bytes, parts.back().kernel.scratch_bytes);
    }
    all.algorithm = "emulated " + parts[0].kernel.algorithm;
    all.bind = [this, parts](const Bindings& given) {
      const Bindings bindings = here(given);
      std::vector<Task> tasks;
      auto read = bindings.reads.begin();
      auto write = bindings.writes.begin();
      for (const Part& part : parts) {
        tasks.push_back(
            part.kernel.bind({{read, read + part.num_reads}, {write, write + part.num_writes}, bindings.scratch}));
        read += part.num_reads;
        write += part.num_writes;
      }
      return [this, tasks](const StepContext&) {  // what it is run with lies on the device
        call([this, tasks] {
          for (const Task& task : tasks) task(context_);
        });
      };
    };
    return all;
  }

  void upload(const graph::Graph& graph, const graph::Program& program, graph::BufferId id,
              std::span<const float> plain, void* device) override {
    refuse_while_recording("upload");
    tasks_.call([&] { kernels_->upload(graph, program, id, plain, here(device)); });
    wait();
  }
  void download(const graph::Graph& graph, const graph::Program& program, graph::BufferId id, const void* device,
                std::span<float> plain) override {
    refuse_while_recording("download");
    tasks_.call([&] { kernels_->download(graph, program, id, here(device), plain); });
    wait();
  }
  void put_input(const graph::Graph& graph, const graph::Program& program, graph::BufferId id, const void* host,
                 void* device) override {
    put(device, host, bytes(graph, program, id));
  }
  void put(void* device, const void* host, size_t bytes) override {
    refuse_while_recording("put");
    const bool was_brought =
        inlet_.use(host, bytes, [to = here(device), bytes](const void* landed) { std::memcpy(to, landed, bytes); });
    if (!was_brought) copy(device, host, bytes);
  }
  bool brings() const override { return true; }
  void bring(const void* host, size_t bytes, void* landing) override { inlet_.bring(host, bytes, landing); }
  void await_brought() override { inlet_.await(); }
  double brought_late_s() override { return inlet_.late_s(); }
  void take(void* host, void* device, size_t bytes) override {
    refuse_while_recording("take");
    if (!is_pinned(host, bytes)) fail_run("take() to memory that is not pinned would wait");
    tasks_.call([host, device = here(device), bytes] {
      std::memcpy(host, device, bytes);
      std::memset(device, 0, bytes);
    });
  }
  void pin(std::span<std::byte> host) override { pinned_[host.data()] = host.size(); }
  void unpin(std::span<std::byte> host) override {
    inlet_.forget(host);
    pinned_.erase(host.data());
  }

  void copy(void* to, const void* from, size_t bytes) override {
    refuse_while_recording("copy");
    tasks_.call([to = here(to), from = here(from), bytes] { std::memcpy(to, from, bytes); });
    wait();
  }
  void zero(void* memory, size_t bytes) override {
    refuse_while_recording("zero");
    tasks_.call([memory = here(memory), bytes] { std::memset(memory, 0, bytes); });
    wait();
  }
  void add(float* total, const float* part, size_t count) override {
    tasks_.call([this, total = here(total), part = here(part), count] { kernels_->add(total, part, count); });
    wait();
  }
  void scale(float* values, size_t count, float factor) override {
    tasks_.call([this, values = here(values), count, factor] { kernels_->scale(values, count, factor); });
    wait();
  }

  void begin(const StepContext& context) override {
    refuse_while_recording("begin");
    tasks_.call([this, context] { context_ = context; });
  }
  void wait() override {
    refuse_while_recording("wait");
    tasks_.wait();
  }
  bool idle() override { return tasks_.idle(); }

  void mark(size_t index) override {
    if (index >= marks_.size()) marks_.resize(index + 1);
    marks_[index] = tasks_.record();
  }
  void wait_for(size_t mark) override { tasks_.wait_for(marks_[mark]); }
  double seconds_between(size_t first, size_t second) override {
    if (!marks_[first]->passed() || !marks_[second]->passed()) fail_run("the time of a mark that was not passed yet");
    return std::chrono::duration<double>(marks_[second]->at() - marks_[first]->at()).count();
  }

  bool records() const override { return true; }
  void begin_recording() override {
    refuse_while_recording("begin_recording");
    recording_.emplace();
  }
  // One in five is spoiled by others, as may happen.
  std::shared_ptr<const void> end_recording() override {
    auto recorded = std::make_shared<Tasks>(std::move(*recording_));
    recording_.reset();
    return ++recordings_ % 5 == 0 ? nullptr : recorded;
  }
  void play(const void* recording) override {
    tasks_.call([tasks = *static_cast<const Tasks*>(recording)] {
      for (const auto& task : tasks) task();
    });
  }

  void* allocate(size_t bytes) override { return away(kernels_->allocate(bytes)); }
  void release(void* memory, size_t bytes) override {
    tasks_.wait();
    kernels_->release(here(memory), bytes);
  }

  std::unique_ptr<backend::Outlet> make_outlet() override {
    return std::make_unique<DeviceOutlet>(*this, *kernels_, tasks_);
  }

 private:
  void call(std::function<void()> task) {
    if (recording_) {
      recording_->push_back(std::move(task));
    } else {
      tasks_.call(std::move(task));
    }
  }
  void refuse_while_recording(const char* what) const {
    if (recording_) fail_run("{}() within a recording", what);
  }
  bool is_pinned(const void* host, size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(host);
    return std::any_of(pinned_.begin(), pinned_.end(), [&](const auto& range) {
      return at >= range.first && at + bytes <= range.first + range.second;
    });
  }

  const std::unique_ptr<backend::Backend> kernels_;
  StepContext context_;  // the device's
  std::optional<Tasks> recording_;
  int recordings_ = 0;
  std::vector<EventPtr> marks_;
  std::map<const std::byte*, size_t> pinned_;
  Stream tasks_{1};
  Inlet inlet_{tasks_};
};

std::unique_ptr<backend::Backend> make(const backend::CudaOptions&, const backend::OptimizerOptions& optimizer) {
  return std::make_unique<EmulatedDevice>(optimizer);
}
int device_count() { return 4; }
std::string device_name(int) { return "emulated device"; }
backend::CudaMemory memory(int) { return {size_t{8} << 30, size_t{8} << 30}; }
backend::CudaPeaks peaks(int, DType, bool) { return {1e10, 1e9}; }

}  // namespace
}  // namespace millrace::device

extern "C" __attribute__((visibility("default"))) const millrace::backend::CudaLibrary millrace_cuda_library = {
    millrace::device::make, millrace::device::device_count, millrace::device::device_name, millrace::device::memory,
    millrace::device::peaks};
