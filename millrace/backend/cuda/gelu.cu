// x times the share of a normal distribution below x, by the error function or by a hyperbolic tangent that comes near
// it.
#include "millrace/backend/cuda/activation.cuh"

namespace millrace::backend::cuda {
namespace {

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

template <typename Form>
struct Gelu {
  __device__ static float value(float x) { return x * Form::share(x); }
  __device__ static float times_slope(float dy, float x) { return dy * Form::slope(x); }
};

}  // namespace

Kernel prepare_gelu(const Device& device, const NodeView& view) {
  return view.attrs<graph::GeluAttrs>().tanh ? prepare_activation<Gelu<ByTanh>>(device, view)
                                             : prepare_activation<Gelu<ByErf>>(device, view);
}

}  // namespace millrace::backend::cuda
