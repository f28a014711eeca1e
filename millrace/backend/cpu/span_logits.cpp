// A transpose of the last two axes, the last of which is as short as a span has ends; no token is far behind all
// others.
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {

Kernel prepare_span_logits(const NodeView& view) {
  const bool backward = view.node.pass == graph::Pass::InputGrad;
  const Shape &x_shape = backward ? view.write(0) : view.read(0), &tokens_shape = view.read(1);
  const int64_t length = x_shape[1], spans = x_shape[2], planes = tokens_shape.rank() == 3 ? tokens_shape[1] : 1;
  const int64_t rows = x_shape[0] * spans;  // of N x K x L
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* from = bind.read<float>(0);
            const auto* tokens = bind.read<int32_t>(1);
            auto* to = bind.write<float>(0);
            return [=](const StepContext&) {
#pragma omp parallel for schedule(static)
              for (int64_t row = 0; row < rows; ++row) {
                const int64_t sample = row / spans, column = sample * length * spans + row % spans;
                const int32_t* token = tokens + sample * planes * length;
                for (int64_t l = 0; l < length; ++l) {
                  const int64_t x = column + l * spans, y = row * length + l;
                  if (backward) {
                    to[x] = token[l] < 0 ? 0.0f : from[y];
                  } else {
                    to[y] = token[l] < 0 ? -1e4f : from[x];
                  }
                }
              }
            };
          }};
}

}  // namespace millrace::backend::cpu
