#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

// The library's tanh is a call per element; this quotient of polynomials (Eigen's and XLA's) becomes vectors. Beyond
// the limit it is 1 in all digits but the last; NaN stays.
inline float tanh_of(float x) {
  constexpr float kLimit = 7.90531110763549805f;
  const float c = x > kLimit ? kLimit : x < -kLimit ? -kLimit : x, square = c * c;
  float p = -2.76076847742355e-16f;
  p = p * square + 2.00018790482477e-13f;
  p = p * square - 8.60467152213735e-11f;
  p = p * square + 5.12229709037114e-08f;
  p = p * square + 1.48572235717979e-05f;
  p = p * square + 6.37261928875436e-04f;
  p = p * square + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * square + 1.18534705686654e-04f;
  q = q * square + 2.26843463243900e-03f;
  q = q * square + 4.89352518554385e-03f;
  return c * p / q;
}

}  // namespace

Kernel prepare_tanh(const NodeView& view) {
  const Shape& shape = view.write(0);
  // The padding of blocked channels is zero, of which both passes make zero.
  const int64_t floats = shape.rank() == 4 ? BlockedShape(shape).vectors() * kBlock : shape.elements();
  if (view.node.pass == graph::Pass::InputGrad) {
    return {"loop", 0, [=](const Bindings& bind) -> Task {
              const auto *dy = bind.read<float>(0), *y = bind.read<float>(1);
              auto* dx = bind.write<float>(0);
              return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
                for (int64_t i = 0; i < floats; ++i) dx[i] = dy[i] * (1.0f - y[i] * y[i]);
              };
            }};
  }
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* x = bind.read<float>(0);
            auto* y = bind.write<float>(0);
            return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
              for (int64_t i = 0; i < floats; ++i) y[i] = tanh_of(x[i]);
            };
          }};
}

}  // namespace millrace::backend::cpu
