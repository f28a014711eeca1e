// Functions of one number, over a whole buffer: forward reads x, backward multiplies dy by a slope that follows from x
// or from y, whichever the node reads. A function is a struct with
//   static float value(float x);        what forward makes of x
//   static float times_slope(float dy, float other);
#pragma once

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {

constexpr int kActivationThreads = 256;
constexpr int kActivationBlocks = 32;  // per multiprocessor, at most

// Each vector is read before it is written, by one thread: y may lie over x, and dx over dy or the other.
template <typename Function, typename T>
__global__ void activation_forward(int64_t vectors, const T* x, T* y) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * blockDim.x) {
    Floats<T> floats = load(x + i * Vector<T>::kSize);
#pragma unroll
    for (float& value : floats.at) value = Function::value(value);
    store(y + i * Vector<T>::kSize, floats);
  }
}

template <typename Function, typename T>
__global__ void activation_input_grad(int64_t vectors, const T* dy, const T* other, T* dx) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * blockDim.x) {
    Floats<T> gradient = load(dy + i * Vector<T>::kSize);
    const Floats<T> floats = load(other + i * Vector<T>::kSize);
#pragma unroll
    for (int e = 0; e < Vector<T>::kSize; ++e) gradient.at[e] = Function::times_slope(gradient.at[e], floats.at[e]);
    store(dx + i * Vector<T>::kSize, gradient);
  }
}

template <typename Function, typename T>
Task activation_task(const Device& device, graph::Pass pass, int64_t elements, const Bindings& at) {
  const int64_t vectors = (elements + Vector<T>::kSize - 1) / Vector<T>::kSize;
  const int blocks = grid_for(device, vectors, kActivationThreads, kActivationBlocks);
  if (pass == graph::Pass::InputGrad) {
    const T *dy = at.read<T>(0), *other = at.read<T>(1);
    T* dx = at.write<T>(0);
    return [=](const StepContext&) {
      activation_input_grad<Function><<<blocks, kActivationThreads, 0, device.stream>>>(vectors, dy, other, dx);
      MILLRACE_LAUNCHED("activation_input_grad");
    };
  }
  const T* x = at.read<T>(0);
  T* y = at.write<T>(0);
  return [=](const StepContext&) {
    activation_forward<Function><<<blocks, kActivationThreads, 0, device.stream>>>(vectors, x, y);
    MILLRACE_LAUNCHED("activation_forward");
  };
}

template <typename Function>
Kernel prepare_activation(const Device& device, const NodeView& view) {
  const graph::Pass pass = view.node.pass;
  if (pass != graph::Pass::Forward && pass != graph::Pass::Evaluate && pass != graph::Pass::InputGrad) {
    refuse_pass(view);
  }
  const DType dtype = dtype_of_read(view, 0);
  const int64_t elements = stored_elements(view.program.buffers[view.node.reads[0]]);
  Kernel kernel;
  kernel.algorithm = "vectors";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() { return activation_task<Function, T>(device, pass, elements, at); });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
