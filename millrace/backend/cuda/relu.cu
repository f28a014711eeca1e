#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // per multiprocessor, at most

// Each vector is read before it is written, by one thread: y may lie over x, and dx over dy or y.
template <typename T>
__global__ void relu_forward(int64_t vectors, const T* x, T* y) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> floats = load(x + i * Vector<T>::kSize);
#pragma unroll
    for (float& value : floats.at) value = relu(value);
    store(y + i * Vector<T>::kSize, floats);
  }
}

template <typename T>
__global__ void relu_input_grad(int64_t vectors, const T* dy, const T* y, T* dx) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> gradient = load(dy + i * Vector<T>::kSize);
    const Floats<T> value = load(y + i * Vector<T>::kSize);
#pragma unroll
    for (int e = 0; e < Vector<T>::kSize; ++e) gradient.at[e] = value.at[e] > 0 ? gradient.at[e] : 0;
    store(dx + i * Vector<T>::kSize, gradient);
  }
}

template <typename T>
Task forward_task(const Device& device, int64_t elements, const Bindings& at) {
  const int64_t vectors = (elements + Vector<T>::kSize - 1) / Vector<T>::kSize;
  const T* x = at.read<T>(0);
  T* y = at.write<T>(0);
  return [=](const StepContext&) {
    relu_forward<<<grid_for(device, vectors, kThreads, kBlocks), kThreads, 0, device.stream>>>(vectors, x, y);
    MILLRACE_LAUNCHED("relu_forward");
  };
}

template <typename T>
Task input_grad_task(const Device& device, int64_t elements, const Bindings& at) {
  const int64_t vectors = (elements + Vector<T>::kSize - 1) / Vector<T>::kSize;
  const T *dy = at.read<T>(0), *y = at.read<T>(1);
  T* dx = at.write<T>(0);
  return [=](const StepContext&) {
    relu_input_grad<<<grid_for(device, vectors, kThreads, kBlocks), kThreads, 0, device.stream>>>(vectors, dy, y, dx);
    MILLRACE_LAUNCHED("relu_input_grad");
  };
}

}  // namespace

Kernel prepare_relu(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::InputGrad) refuse_pass(view);
  const DType dtype = dtype_of_read(view, 0);
  const int64_t elements = stored_elements(view.program.buffers[view.node.reads[0]]);
  Kernel kernel;
  kernel.algorithm = "vectors";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() {
      return pass == Pass::InputGrad ? input_grad_task<T>(device, elements, at) : forward_task<T>(device, elements, at);
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
