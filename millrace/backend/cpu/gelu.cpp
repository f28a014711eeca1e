// x times the share of a normal distribution below x. The library's erf, tanh and exp are calls per element; here both
// forms rest on one exponential that, like the loops around it, becomes vectors.
#include <bit>
#include <cmath>
#include <numbers>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

// For |x| <= 87.3, to two units in the last place; NaN gives anything: what is made of it is multiplied by x as well.
inline float exp_of(float x) {
  // Adding 1.5 * 2^23 rounds to a whole number, which is then the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float shifted = x * std::numbers::log2e_v<float> + kRound;
  const float whole = shifted - kRound;
  const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;                                           // Cephes, expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float fraction = p * r * r + r + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(fraction) + (std::bit_cast<uint32_t>(shifted) << 23));
}

// NaN stays.
inline float clamp(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// Either form gives the share of what lies below x and x times its derivative. Beyond +-kLimit the share is 0 or 1 in
// all digits of a float.
struct Share {
  float value, slope;
};

struct ByErf {
  static constexpr float kLimit = 13.0f;

  // What lies beyond t >= 0 is exp(-t^2 / 2) times a smooth function, here a polynomial in 1 / (1 + 0.305 t) (the form
  // of Abramowitz and Stegun 7.1.26) fitted to 1e-7 of its value on [0, 13]: small shares keep their digits.
  static inline Share share(float x) {
    const float c = clamp(x, kLimit), t = std::abs(c);
    const float e = exp_of(-0.5f * c * c);
    const float k = 1.0f / (1.0f + 0.305f * t);
    float p = 0.0366981855f;
    p = p * k - 0.152983748f;
    p = p * k + 0.185708263f;
    p = p * k - 0.037968021f;
    p = p * k + 0.121016473f;
    p = p * k + 0.103422645f;
    p = p * k + 0.122466492f;
    p = p * k + 0.121639757f;
    const float beyond = e * (p * k);
    constexpr float kDensity = 0.398942280401f;  // 1 / sqrt(2 pi)
    return {c < 0 ? beyond : 1.0f - beyond, c * e * kDensity};
  }
};

// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)).
struct ByTanh {
  static constexpr float kLimit = 10.0f;

  static inline Share share(float x) {
    constexpr float kTwice = 2 * 0.797884560803f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
    const float c = clamp(x, kLimit), square = c * c;
    const float e = exp_of(-kTwice * c * (1.0f + kCubic * square));
    const float value = 1.0f / (1.0f + e);
    return {value, c * value * (e * value) * kTwice * (1.0f + 3 * kCubic * square)};
  }
};

template <typename Form>
Task bind_forward(int64_t floats, const Bindings& bind) {
  const auto* x = bind.read<float>(0);
  auto* y = bind.write<float>(0);
  return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < floats; ++i) {
      // A share that is not quite 0 must not be multiplied by a number without bounds.
      const float factor = x[i] < -Form::kLimit ? 0.0f : x[i];
      y[i] = factor * Form::share(x[i]).value;
    }
  };
}

template <typename Form>
Task bind_input_grad(int64_t floats, const Bindings& bind) {
  const auto *dy = bind.read<float>(0), *x = bind.read<float>(1);
  auto* dx = bind.write<float>(0);
  return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < floats; ++i) {
      const Share share = Form::share(x[i]);
      dx[i] = dy[i] * (share.value + share.slope);
    }
  };
}

}  // namespace

Kernel prepare_gelu(const NodeView& view) {
  const Shape& shape = view.write(0);
  // The padding of blocked channels is zero, of which both passes make zero.
  const int64_t floats = shape.rank() == 4 ? BlockedShape(shape).vectors() * kBlock : shape.elements();
  const bool by_tanh = view.attrs<graph::GeluAttrs>().tanh;
  if (view.node.pass == graph::Pass::InputGrad) {
    return {"loop", 0, [=](const Bindings& bind) {
              return by_tanh ? bind_input_grad<ByTanh>(floats, bind) : bind_input_grad<ByErf>(floats, bind);
            }};
  }
  return {"loop", 0, [=](const Bindings& bind) {
            return by_tanh ? bind_forward<ByTanh>(floats, bind) : bind_forward<ByErf>(floats, bind);
          }};
}

}  // namespace millrace::backend::cpu
