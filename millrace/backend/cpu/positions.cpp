// To each sample the same L x D numbers are added, the first places of the table.
#include <algorithm>

#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

struct Geometry {
  int64_t samples, length, places, width;
};

// y may lie over x.
void forward(const Geometry& g, const float* x, const float* w, float* y) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < g.samples * g.length; ++row) {
    const float *from = x + row * g.width, *add = w + row % g.length * g.width;
    float* to = y + row * g.width;
#pragma omp simd
    for (int64_t d = 0; d < g.width; ++d) to[d] = from[d] + add[d];
  }
}

// A thread has whole places and adds the samples in their order.
void weight_grad(const Geometry& g, const float* dy, float* dw) {
#pragma omp parallel for schedule(static)
  for (int64_t place = 0; place < g.places; ++place) {
    float* sum = dw + place * g.width;
    std::fill_n(sum, g.width, 0.0f);
    for (int64_t n = 0; place < g.length && n < g.samples; ++n) {
      const float* part = dy + (n * g.length + place) * g.width;
#pragma omp simd
      for (int64_t d = 0; d < g.width; ++d) sum[d] += part[d];
    }
  }
}

}  // namespace

Kernel prepare_positions(const NodeView& view) {
  const bool forwards = view.node.pass != graph::Pass::WeightGrad;
  const Shape &x_shape = view.read(0), &w_shape = forwards ? view.read(1) : view.write(0);
  const Geometry g{x_shape[0], x_shape[1], w_shape[0], w_shape[1]};
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto *first = bind.read<float>(0), *w = forwards ? bind.read<float>(1) : nullptr;
            auto* out = bind.write<float>(0);
            if (forwards) return [=](const StepContext&) { forward(g, first, w, out); };
            return [=](const StepContext&) { weight_grad(g, first, out); };
          }};
}

}  // namespace millrace::backend::cpu
