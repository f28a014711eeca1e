#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {

// Accumulate reads and writes its total, so it is the same sum.
Kernel prepare_add(const NodeView&, int64_t floats) {
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* a = bind.read<float>(0);
            const auto* b = bind.read<float>(1);
            auto* y = bind.write<float>(0);
            return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
              for (int64_t i = 0; i < floats; ++i) y[i] = a[i] + b[i];
            };
          }};
}

}  // namespace millrace::backend::cpu
