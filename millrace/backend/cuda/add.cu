// Add of two values or two gradients, in whichever pass, and Accumulate of a gradient onto its total in f32.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // per multiprocessor, at most

// Each vector is read before it is written, by one thread: the sum may lie over a or b.
template <typename T>
__global__ void add(int64_t vectors, const T* a, const T* b, T* sum) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> total = load(a + i * Vector<T>::kSize);
    const Floats<T> part = load(b + i * Vector<T>::kSize);
#pragma unroll
    for (int e = 0; e < Vector<T>::kSize; ++e) total.at[e] += part.at[e];
    store(sum + i * Vector<T>::kSize, total);
  }
}

// Four elements of whatever type, which lie together.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// `cleared`: null, or the part again.
template <typename T>
__global__ void accumulate(int64_t fours, const float* total, const T* part, float* sum, T* cleared) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < fours; i += int64_t{gridDim.x} * kThreads) {
    const Four<T> added = *reinterpret_cast<const Four<T>*>(part + i * 4);
    Floats<float> floats = load(total + i * 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) floats.at[e] += to_float(added.at[e]);
    store(sum + i * 4, floats);
    if (cleared) *reinterpret_cast<Four<T>*>(cleared + i * 4) = {};
  }
}

template <typename T>
Task add_task(const Device& device, int64_t elements, const Bindings& at) {
  const int64_t vectors = (elements + Vector<T>::kSize - 1) / Vector<T>::kSize;
  const T *a = at.read<T>(0), *b = at.read<T>(1);
  T* sum = at.write<T>(0);
  return [=](const StepContext&) {
    add<<<grid_for(device, vectors, kThreads, kBlocks), kThreads, 0, device.stream>>>(vectors, a, b, sum);
    MILLRACE_LAUNCHED("add");
  };
}

template <typename T>
Task accumulate_task(const Device& device, int64_t elements, bool clears_part, const Bindings& at) {
  const int64_t fours = (elements + 3) / 4;
  const float* total = at.read<float>(0);
  const T* part = at.read<T>(1);
  float* sum = at.write<float>(0);
  T* cleared = clears_part ? static_cast<T*>(at.reads[1]) : nullptr;
  return [=](const StepContext&) {
    const int grid = grid_for(device, fours, kThreads, kBlocks);
    accumulate<<<grid, kThreads, 0, device.stream>>>(fours, total, part, sum, cleared);
    MILLRACE_LAUNCHED("accumulate");
  };
}

}  // namespace

Kernel prepare_add(const Device& device, const NodeView& view) {
  const int64_t elements = stored_elements(view.program.buffers[view.node.reads[0]]);
  const bool accumulates = view.node.kind == graph::OpKind::Accumulate;
  // A part that is itself a sum over micro-batches starts the next step from zero.
  const bool clears_part = view.node.pass == graph::Pass::Update &&
                           view.program.buffers[view.node.reads[1]].role == graph::BufferRole::GradientSum;
  Kernel kernel;
  kernel.algorithm = "vectors";
  kernel.bind = [=, part = dtype_of_read(view, 1)](const Bindings& at) {
    return with_type(part, [&]<typename T>() {
      return accumulates ? accumulate_task<T>(device, elements, clears_part, at) : add_task<T>(device, elements, at);
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
