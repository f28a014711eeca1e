#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

Kernel accumulate_and_clear(int64_t floats) {
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            auto* total = bind.write<float>(0);
            auto* part = static_cast<float*>(bind.reads[1]);
            return [=](const StepContext&) {
#pragma omp parallel for simd schedule(static)
              for (int64_t i = 0; i < floats; ++i) {
                total[i] += part[i];
                part[i] = 0.0f;
              }
            };
          }};
}

}  // namespace

// Accumulate reads and writes its total, so it is the same sum.
Kernel prepare_add(const NodeView& view, int64_t floats) {
  // A part that is itself a sum over micro-batches starts the next step from zero.
  const bool clears_part = view.node.kind == graph::OpKind::Accumulate && view.node.pass == graph::Pass::Update &&
                           view.program.buffers[view.node.reads[1]].role == graph::BufferRole::GradientSum;
  if (clears_part) return accumulate_and_clear(floats);
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
