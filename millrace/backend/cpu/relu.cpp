#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {

Kernel prepare_relu(const NodeView& view, int64_t floats) {
  if (view.node.pass == graph::Pass::InputGrad) {
    return {"loop", 0, [=](const Bindings& bind) -> Task {
              const auto* dy = bind.read<float>(0);
              const auto* y = bind.read<float>(1);
              auto* dx = bind.write<float>(0);
              return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
                for (int64_t i = 0; i < floats; ++i) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
              };
            }};
  }
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* x = bind.read<float>(0);
            auto* y = bind.write<float>(0);
            return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
              for (int64_t i = 0; i < floats; ++i) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
            };
          }};
}

}  // namespace millrace::backend::cpu
