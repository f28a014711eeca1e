// x times the share of a normal distribution below x, by the error function or by a hyperbolic tangent that comes near
// it (Hendrycks and Gimpel, 2016).
#include <cmath>
#include <numbers>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

constexpr double kCubic = 0.044715;
const double kSlope = std::sqrt(2 / std::numbers::pi);

// The share below x, and its derivative.
struct Share {
  double value, slope;
};

Share share_below(double x, bool by_tanh) {
  if (!by_tanh) {
    return {0.5 * (1 + std::erf(x / std::numbers::sqrt2)), std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi)};
  }
  const double t = std::tanh(kSlope * (x + kCubic * x * x * x));
  return {0.5 * (1 + t), 0.5 * (1 - t * t) * kSlope * (1 + 3 * kCubic * x * x)};
}

}  // namespace

Kernel prepare_gelu(const NodeView& view) {
  const int64_t elements = view.read(0).elements();
  const bool by_tanh = view.attrs<graph::GeluAttrs>().tanh;
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* x = at.read<T>(0);
        T* y = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t e = 0; e < elements; ++e) y[e] = static_cast<T>(x[e] * share_below(x[e], by_tanh).value);
        };
      });
    case graph::Pass::InputGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *dy = at.read<T>(0), *x = at.read<T>(1);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t e = 0; e < elements; ++e) {
            const Share share = share_below(x[e], by_tanh);
            dx[e] = static_cast<T>(dy[e] * (share.value + x[e] * share.slope));
          }
        };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
