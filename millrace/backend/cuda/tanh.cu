#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // per multiprocessor, at most

// Each vector is read before it is written, by one thread: y may lie over x, and dx over dy or y.
template <typename T>
__global__ void tanh_forward(int64_t vectors, const T* x, T* y) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> floats = load(x + i * Vector<T>::kSize);
#pragma unroll
    for (float& value : floats.at) value = tanhf(value);
    store(y + i * Vector<T>::kSize, floats);
  }
}

template <typename T>
__global__ void tanh_input_grad(int64_t vectors, const T* dy, const T* y, T* dx) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> gradient = load(dy + i * Vector<T>::kSize);
    const Floats<T> value = load(y + i * Vector<T>::kSize);
#pragma unroll
    for (int e = 0; e < Vector<T>::kSize; ++e) gradient.at[e] *= 1 - value.at[e] * value.at[e];
    store(dx + i * Vector<T>::kSize, gradient);
  }
}

template <typename T>
Task tanh_task(const Device& device, Pass pass, int64_t elements, const Bindings& at) {
  const int64_t vectors = (elements + Vector<T>::kSize - 1) / Vector<T>::kSize;
  const int blocks = grid_for(device, vectors, kThreads, kBlocks);
  if (pass == Pass::InputGrad) {
    const T *dy = at.read<T>(0), *y = at.read<T>(1);
    T* dx = at.write<T>(0);
    return [=](const StepContext&) {
      tanh_input_grad<<<blocks, kThreads, 0, device.stream>>>(vectors, dy, y, dx);
      MILLRACE_LAUNCHED("tanh_input_grad");
    };
  }
  const T* x = at.read<T>(0);
  T* y = at.write<T>(0);
  return [=](const StepContext&) {
    tanh_forward<<<blocks, kThreads, 0, device.stream>>>(vectors, x, y);
    MILLRACE_LAUNCHED("tanh_forward");
  };
}

}  // namespace

Kernel prepare_tanh(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::InputGrad) refuse_pass(view);
  const DType dtype = dtype_of_read(view, 0);
  const int64_t elements = stored_elements(view.program.buffers[view.node.reads[0]]);
  Kernel kernel;
  kernel.algorithm = "vectors";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() { return tanh_task<T>(device, pass, elements, at); });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
