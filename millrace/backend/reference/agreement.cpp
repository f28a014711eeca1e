// SumSquares and ClipNorm. The agreement is in f32 whatever the gradients are; with f32 and f64 they carry no factor.
#include <algorithm>
#include <cmath>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_sum_squares(const NodeView& view) {
  const int64_t elements = view.read(0).elements();
  const int place = graph::kSquares + view.program.buffers[view.node.reads[0]].param;
  const bool counts = view.attrs<graph::SquaresAttrs>().counts;
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* gradient = at.read<T>(0);
    float* square = at.write<float>(0) + place;
    return [=](const StepContext&) {
      double sum = 0;
      for (int64_t e = 0; counts && e < elements; ++e) sum += static_cast<double>(gradient[e]) * gradient[e];
      *square = static_cast<float>(sum);
    };
  });
}

Kernel prepare_clip_norm(const NodeView& view, const OptimizerOptions& options) {
  const int64_t fields = view.read(0).elements();
  const bool watches = view.num_writes() > 1;
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    auto* agreement = at.write<float>(0);
    float* watch = watches ? at.write<float>(1) : nullptr;
    return [=](const StepContext&) {
      double sum = 0;
      for (int64_t i = graph::kSquares; i < fields; ++i) sum += agreement[i];
      const auto norm = static_cast<float>(std::sqrt(sum));
      agreement[graph::kNorm] = norm;
      agreement[graph::kClip] = clip_factor(options.clip_norm, norm);
      for (int64_t i = graph::kSquares; watches && i < fields; ++i) watch[i - graph::kSquares] += agreement[i];
      std::fill(agreement + graph::kSquares, agreement + fields, 0.0f);  // for the next sum over stages
    };
  });
}

}  // namespace millrace::backend::reference
