#include "millrace/backend/cuda/cuda_backend.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "millrace/backend/cuda/cells.h"
#include "millrace/backend/cuda/conv.h"
#include "millrace/backend/cuda/host_calls.h"
#include "millrace/backend/cuda/inlet.h"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/layout.h"
#include "millrace/backend/cuda/matmul.h"
#include "millrace/backend/cuda/nccl_fabric.h"
#include "millrace/backend/cuda/outlet.h"
#include "millrace/backend/cuda/recording.h"
#include "millrace/backend/cuda/row_pitch.h"
#include "millrace/backend/cuda/stem.h"
#include "millrace/backend/cuda/trial.h"
#include "millrace/backend/cuda_library.h"
#include "millrace/base/error.h"

namespace millrace::backend {
namespace cuda {

namespace {

std::string_view name_of_file(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// An earlier kernel went wrong, not the call that was told.
bool is_of_a_kernel(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure: return true;
    default: return false;
  }
}

std::string launched_before(cudaError_t status) {
  if (!is_of_a_kernel(status) || !last_launch.kernel) return {};
  return fmt::format("; the last of our kernels before it was {} ({}:{})", last_launch.kernel,
                     name_of_file(last_launch.file), last_launch.line);
}

}  // namespace

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  fail_run("CUDA: {} ({}), {}:{}: {}{}", cudaGetErrorString(status), cudaGetErrorName(status), name_of_file(file), line,
           call, launched_before(status));
}

void refuse_pass(const NodeView& view) {
  fail_input("{}: the CUDA backend has no kernel for {} {}", view.node.name, name_of(view.node.kind),
             name_of(view.node.pass));
}

void refuse_row(const graph::Buffer& buffer, const Staging& staging) {
  fail_run("{}: one sample of {} does not fit the {} bytes it is copied through", buffer.name, buffer.shape.str(),
           staging.bytes);
}

void refuse_shape(const NodeView& view, const char* why) {
  fail_input("{}: {} on {}: {}", view.node.name, name_of(view.node.kind), view.read(0).str(), why);
}

}  // namespace cuda

namespace {

using cuda::Device;
using graph::BufferId;
using graph::Graph;
using graph::OpKind;
using graph::Program;

class CudaBackend final : public Backend {
 public:
  CudaBackend(const CudaOptions& options, const OptimizerOptions& optimizer)
      : options_(options), optimizer_(optimizer) {
    select();
    MILLRACE_CUDA(cudaStreamCreateWithFlags(&device_.stream, cudaStreamNonBlocking));
    MILLRACE_CUDA(cudaDeviceGetAttribute(&device_.multiprocessors, cudaDevAttrMultiProcessorCount, options.device));
    // What all kernels share lies in one piece: the step, the counters, and room for numbers on their way.
    const size_t context_bytes = 256, counter_bytes = Device::kNumCounters * sizeof(unsigned);
    MILLRACE_CUDA(cudaMalloc(&shared_, context_bytes + counter_bytes + cuda::kStagingBytes));
    zero(shared_, context_bytes + counter_bytes);
    device_.context = reinterpret_cast<StepContext*>(shared_);
    device_.counters = reinterpret_cast<unsigned*>(shared_ + context_bytes);
    staging_ = {reinterpret_cast<float*>(shared_ + context_bytes + counter_bytes), cuda::kStagingBytes};
    conv_ = std::make_unique<cuda::ConvLibrary>(device_, options);
    matmul_ = std::make_unique<cuda::MatmulLibrary>(device_, options);
  }
  ~CudaBackend() override {
    cudaSetDevice(options_.device);
    {
      const std::lock_guard lock(cuda::device_wait_mutex());
      conv_.reset();
      matmul_.reset();
    }
    for (cudaEvent_t event : marks_) cudaEventDestroy(event);
    cudaFree(shared_);
    cudaStreamDestroy(device_.stream);
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string name() const override { return "cuda"; }

  size_t bytes(const Graph& graph, const Program& program, BufferId id) override {
    const graph::Buffer& buffer = program.buffers[id];
    const auto fold = id == program.features ? cuda::stem_fold(graph) : std::nullopt;
    if (fold) return static_cast<size_t>(fold->elements()) * bytes_of(buffer.dtype);
    const auto elements = static_cast<size_t>(cuda::stored_elements(program, id));
    return cuda::has_small_cells(program, id) ? elements / 2 : elements * bytes_of(buffer.dtype);
  }

  Kernel prepare(const NodeView& view) override {
    switch (view.node.kind) {
      case OpKind::Conv2d: return cuda::prepare_conv(device_, *conv_, view);
      case OpKind::Linear: return cuda::prepare_linear(device_, *matmul_, view);
      case OpKind::EmbeddingBag: return cuda::prepare_embedding_bag(device_, view);
      case OpKind::Embedding: return cuda::prepare_embedding(device_, view);
      case OpKind::Positions: return cuda::prepare_positions(device_, view);
      case OpKind::ImageTokens: return cuda::prepare_image_tokens(device_, view);
      case OpKind::SelectToken: return cuda::prepare_select_token(device_, view);
      case OpKind::SpanLogits: return cuda::prepare_span_logits(device_, view);
      case OpKind::LayerNorm: return cuda::prepare_layer_norm(device_, view);
      case OpKind::Gelu: return cuda::prepare_gelu(device_, view);
      case OpKind::Tanh: return cuda::prepare_tanh(device_, view);
      case OpKind::Attention: return cuda::prepare_attention(device_, *conv_, view);
      case OpKind::BatchNorm: return cuda::prepare_batch_norm(device_, view);
      case OpKind::MaxPool: return cuda::prepare_max_pool(device_, view);
      case OpKind::AvgPool:
      case OpKind::AdaptiveAvgPool: return cuda::prepare_avg_pool(device_, view);
      case OpKind::Relu: return cuda::prepare_relu(device_, view);
      case OpKind::Add:
      case OpKind::Accumulate: return cuda::prepare_add(device_, view);
      case OpKind::Flatten: return cuda::prepare_flatten(device_, view);
      case OpKind::Dropout: return cuda::prepare_dropout(device_, view);
      case OpKind::SoftmaxCrossEntropy: return cuda::prepare_loss(device_, view);
      case OpKind::SgdStep:
      case OpKind::AdamStep:
      case OpKind::LambStep:
      case OpKind::CheckFinite:
      case OpKind::SumSquares: return prepare_together({view});
      case OpKind::ClipNorm: return cuda::prepare_clip_norm(device_, view, optimizer_);
      case OpKind::AdjustScale: return cuda::prepare_adjust_scale(device_, optimizer_.scale);
    }
    cuda::refuse_pass(view);
  }

  size_t together(const Program& program, size_t node, size_t limit) const override {
    const OpKind kind = program.nodes[node].kind;
    if (!is_step(kind) && kind != OpKind::CheckFinite && kind != OpKind::SumSquares) return 1;
    size_t count = 1;
    while (count < limit && program.nodes[node + count].kind == kind) ++count;
    return count;
  }

  Kernel prepare_together(const std::vector<NodeView>& views) override {
    switch (views[0].node.kind) {
      case OpKind::CheckFinite: return cuda::prepare_check_finite(device_, views);
      case OpKind::SumSquares: return cuda::prepare_sum_squares(device_, views);
      case OpKind::AdamStep: return cuda::prepare_adam(device_, views, optimizer_);
      case OpKind::LambStep: return cuda::prepare_lamb(device_, views, optimizer_);
      default: return cuda::prepare_sgd(device_, views, optimizer_);
    }
  }

  void upload(const Graph& graph, const Program& program, BufferId id, std::span<const float> plain,
              void* device) override {
    const auto fold = id == program.features ? cuda::stem_fold(graph) : std::nullopt;
    if (fold) return cuda::put_images(device_, staging_, program.buffers[id], *fold, plain.data(), device);
    if (cuda::has_small_cells(program, id)) {
      const std::vector<uint8_t> cells = cuda::packed_cells(program.buffers[id], plain);
      return copy(device, cells.data(), cells.size());
    }
    cuda::put_plain(device_, staging_, program.buffers[id], cuda::row_pitch(program, id),
                    cuda::stored_elements(program, id), plain.data(), device);
  }
  void download(const Graph&, const Program& program, BufferId id, const void* device,
                std::span<float> plain) override {
    cuda::read_back(device_, staging_, program, id, device, plain);
  }
  void put_input(const Graph& graph, const Program& program, BufferId id, const void* host, void* device) override {
    const graph::Buffer& buffer = program.buffers[id];
    const auto count = static_cast<size_t>(buffer.shape.elements());
    if (buffer.dtype == DType::I32) return put(device, host, count * sizeof(int32_t));
    const bool was_brought = inlet_.use(host, count * sizeof(float), [&](const void* landed) {
      const auto* plain = static_cast<const float*>(landed);
      const auto fold = id == program.features ? cuda::stem_fold(graph) : std::nullopt;
      if (fold) return cuda::fold_images(device_, *fold, plain, buffer.shape[0], device, buffer.dtype);
      cuda::store_plain(device_, buffer, cuda::row_pitch(program, id), cuda::stored_elements(program, id), plain,
                        device);
    });
    if (!was_brought) upload(graph, program, id, {static_cast<const float*>(host), count}, device);
  }
  void put(void* device, const void* host, size_t bytes) override {
    const bool was_brought = inlet_.use(host, bytes, [&](const void* landed) {
      MILLRACE_CUDA(cudaMemcpyAsync(device, landed, bytes, cudaMemcpyDeviceToDevice, device_.stream));
    });
    if (!was_brought) copy(device, host, bytes);
  }
  bool brings() const override { return true; }
  void bring(const void* host, size_t bytes, void* landing) override { inlet_.bring(host, bytes, landing); }
  void await_brought() override { inlet_.await(); }
  double brought_late_s() override { return inlet_.late_s(); }
  void take(void* host, void* device, size_t bytes) override {
    MILLRACE_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, device_.stream));
    MILLRACE_CUDA(cudaMemsetAsync(device, 0, bytes, device_.stream));
  }

  // Where the system allows no more such memory, copies are slower and all else is the same.
  void pin(std::span<std::byte> host) override {
    if (cudaHostRegister(host.data(), host.size(), cudaHostRegisterDefault) != cudaSuccess) cudaGetLastError();
  }
  void unpin(std::span<std::byte> host) override {
    inlet_.forget(host);
    if (cudaHostUnregister(host.data()) != cudaSuccess) cudaGetLastError();
  }

  bool on_host() const override { return false; }
  void copy(void* to, const void* from, size_t bytes) override {
    MILLRACE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device_.stream));
    wait();
  }
  void zero(void* memory, size_t bytes) override {
    MILLRACE_CUDA(cudaMemsetAsync(memory, 0, bytes, device_.stream));
    wait();
  }
  void add(float* total, const float* part, size_t count) override {
    if (is_here(total) && is_here(part)) {
      cuda::add_floats(device_, total, part, count);
      return wait();
    }
    // Another GPU's memory cannot be counted on to be within reach of a kernel: it comes here in pieces.
    const size_t most = staging_.bytes / sizeof(float) / 2;
    float *here = staging_.memory, *other = staging_.memory + most;
    for (size_t first = 0; first < count; first += most) {
      const size_t floats = std::min(most, count - first);
      copy(here, total + first, floats * sizeof(float));
      copy(other, part + first, floats * sizeof(float));
      cuda::add_floats(device_, here, other, floats);
      copy(total + first, here, floats * sizeof(float));
    }
  }
  void scale(float* values, size_t count, float factor) override {
    cuda::scale_floats(device_, values, count, factor);
    wait();
  }

  std::unique_ptr<Fabric> make_fabric() override { return cuda::make_nccl_fabric(options_.device); }

  void begin(const StepContext& context) override {
    // Stretches of a step have one context, mostly: nothing is launched to write the same again.
    if (context_ == context) return;
    cuda::set_context(device_, context);
    context_ = context;
  }
  void wait() override { MILLRACE_CUDA(cudaStreamSynchronize(device_.stream)); }

  void mark(size_t index) override {
    while (index >= marks_.size()) {
      marks_.emplace_back();
      MILLRACE_CUDA(cudaEventCreate(&marks_.back()));
    }
    MILLRACE_CUDA(cudaEventRecord(marks_[index], device_.stream));
  }
  void wait_for(size_t mark) override { MILLRACE_CUDA(cudaEventSynchronize(marks_[mark])); }
  double seconds_between(size_t first, size_t second) override {
    float ms = 0;
    MILLRACE_CUDA(cudaEventElapsedTime(&ms, marks_[first], marks_[second]));
    return static_cast<double>(ms) * 1e-3;
  }

  void begin_range(const char* name) override { nvtxRangePushA(name); }
  void end_range() override { nvtxRangePop(); }

  bool records() const override { return true; }
  void begin_recording() override { recorder_.begin(); }
  std::shared_ptr<const void> end_recording() override { return recorder_.end(); }
  void play(const void* recording) override { recorder_.play(recording); }
  bool idle() override { return cudaStreamQuery(device_.stream) != cudaErrorNotReady; }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    MILLRACE_CUDA(cudaMalloc(&memory, bytes));
    zero(memory, bytes);
    return memory;
  }
  void release(void* memory, size_t) override { cudaFree(memory); }

  std::unique_ptr<Outlet> make_outlet() override {
    return std::make_unique<cuda::CudaOutlet>(*this, device_, options_.device);
  }

 private:
  bool is_here(const void* memory) const {
    cudaPointerAttributes attributes{};
    MILLRACE_CUDA(cudaPointerGetAttributes(&attributes, memory));
    return attributes.type == cudaMemoryTypeDevice && attributes.device == options_.device;
  }

  // Everything of a worker is called on its own thread, which has a device of its own.
  void select() const { MILLRACE_CUDA(cudaSetDevice(options_.device)); }

  const CudaOptions options_;
  const OptimizerOptions optimizer_;
  Device device_;
  std::byte* shared_ = nullptr;
  std::optional<StepContext> context_;  // that device_.context has, once the tasks called so far are done
  cuda::Staging staging_;
  cuda::Inlet inlet_{device_};
  cuda::Recorder recorder_{device_};
  std::unique_ptr<cuda::ConvLibrary> conv_;
  std::unique_ptr<cuda::MatmulLibrary> matmul_;
  std::vector<cudaEvent_t> marks_;
};

std::unique_ptr<Backend> make(const CudaOptions& options, const OptimizerOptions& optimizer) {
  return std::make_unique<CudaBackend>(options, optimizer);
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string device_name(int device) {
  cudaDeviceProp properties;
  MILLRACE_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

CudaMemory memory(int device) {
  MILLRACE_CUDA(cudaSetDevice(device));
  CudaMemory memory;
  MILLRACE_CUDA(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
  return memory;
}

CudaPeaks peaks(int device, DType dtype, bool tf32) {
  MILLRACE_CUDA(cudaSetDevice(device));
  Device shared;
  MILLRACE_CUDA(cudaStreamCreateWithFlags(&shared.stream, cudaStreamNonBlocking));
  MILLRACE_CUDA(cudaDeviceGetAttribute(&shared.multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CudaPeaks peaks;
  {
    constexpr size_t kBytes = size_t{1} << 30;
    const cuda::TrialMemory from(kBytes), to(kBytes);
    cuda::fill_random(shared, from.get(), kBytes / 4, DType::F32);
    const double seconds = cuda::trial_seconds(shared, 1, [&] {
      MILLRACE_CUDA(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice, shared.stream));
    });
    peaks.bytes_per_s = 2 * static_cast<double>(kBytes) / seconds;
  }
  {
    constexpr int64_t kSize = 8192;
    cuda::MatmulLibrary library(shared, {.device = device, .tf32 = tf32});
    const auto product =
        library.choose({.rows = kSize, .columns = kSize, .inner = kSize, .transposes_b = true, .dtype = dtype});
    const size_t bytes = kSize * kSize * bytes_of(dtype);
    const cuda::TrialMemory a(bytes), b(bytes), d(bytes), workspace(product->workspace_bytes());
    for (const cuda::TrialMemory* factor : {&a, &b}) cuda::fill_random(shared, factor->get(), kSize * kSize, dtype);
    const double seconds =
        cuda::trial_seconds(shared, 1, [&] { product->run(a.get(), b.get(), nullptr, d.get(), workspace.get()); });
    peaks.flops_per_s = 2.0 * kSize * kSize * kSize / seconds;
  }
  cudaStreamDestroy(shared.stream);
  return peaks;
}

}  // namespace
}  // namespace millrace::backend

extern "C" __attribute__((visibility("default"))) const millrace::backend::CudaLibrary millrace_cuda_library = {
    millrace::backend::make, millrace::backend::device_count, millrace::backend::device_name, millrace::backend::memory,
    millrace::backend::peaks};
