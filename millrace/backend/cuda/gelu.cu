// x times the share of a normal distribution below x, by the error function or by a hyperbolic tangent that comes near
// it.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // per multiprocessor, at most

// Either form gives the share of what lies below x, and the derivative of x times it. NaN stays.
struct ByErf {
  __device__ static float share(float x) { return 0.5f + 0.5f * erff(x * 0.707106781187f); }
  __device__ static float slope(float x) {
    constexpr float kDensity = 0.398942280401f;  // 1 / sqrt(2 pi)
    return share(x) + x * kDensity * __expf(-0.5f * x * x);
  }
};

// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)).
struct ByTanh {
  static constexpr float kTwice = 2 * 0.797884560803f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)

  __device__ static float exponential(float x) { return __expf(-kTwice * x * (1 + kCubic * x * x)); }
  __device__ static float share(float x) { return __fdividef(1, 1 + exponential(x)); }
  __device__ static float slope(float x) {
    // Beyond 10 the share is 0 or 1; the powers of a large number would make infinity times zero.
    const float c = x > 10 ? 10 : x < -10 ? -10 : x;
    const float e = exponential(c), value = __fdividef(1, 1 + e);
    return value + c * value * (e * value) * kTwice * (1 + 3 * kCubic * c * c);
  }
};

// Each vector is read before it is written, by one thread: y may lie over x, and dx over dy or x.
template <typename Form, typename T>
__global__ void gelu_forward(int64_t vectors, const T* x, T* y) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> floats = load(x + i * Vector<T>::kSize);
#pragma unroll
    for (float& value : floats.at) value *= Form::share(value);
    store(y + i * Vector<T>::kSize, floats);
  }
}

template <typename Form, typename T>
__global__ void gelu_input_grad(int64_t vectors, const T* dy, const T* x, T* dx) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    Floats<T> gradient = load(dy + i * Vector<T>::kSize);
    const Floats<T> value = load(x + i * Vector<T>::kSize);
#pragma unroll
    for (int e = 0; e < Vector<T>::kSize; ++e) gradient.at[e] *= Form::slope(value.at[e]);
    store(dx + i * Vector<T>::kSize, gradient);
  }
}

template <typename Form, typename T>
Task gelu_task(const Device& device, Pass pass, int64_t elements, const Bindings& at) {
  const int64_t vectors = (elements + Vector<T>::kSize - 1) / Vector<T>::kSize;
  const int blocks = grid_for(device, vectors, kThreads, kBlocks);
  if (pass == Pass::InputGrad) {
    const T *dy = at.read<T>(0), *x = at.read<T>(1);
    T* dx = at.write<T>(0);
    return [=](const StepContext&) {
      gelu_input_grad<Form><<<blocks, kThreads, 0, device.stream>>>(vectors, dy, x, dx);
      MILLRACE_LAUNCHED("gelu_input_grad");
    };
  }
  const T* x = at.read<T>(0);
  T* y = at.write<T>(0);
  return [=](const StepContext&) {
    gelu_forward<Form><<<blocks, kThreads, 0, device.stream>>>(vectors, x, y);
    MILLRACE_LAUNCHED("gelu_forward");
  };
}

}  // namespace

Kernel prepare_gelu(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::InputGrad) refuse_pass(view);
  const DType dtype = dtype_of_read(view, 0);
  const int64_t elements = stored_elements(view.program.buffers[view.node.reads[0]]);
  const bool by_tanh = view.attrs<graph::GeluAttrs>().tanh;
  Kernel kernel;
  kernel.algorithm = "vectors";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() {
      return by_tanh ? gelu_task<ByTanh, T>(device, pass, elements, at)
                     : gelu_task<ByErf, T>(device, pass, elements, at);
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
