// SumSquares and ClipNorm. The CPU has no f16: gradients carry no factor, and every update is made.
#include <algorithm>
#include <cmath>

#include "millrace/backend/cpu/chunk_sums.h"
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

double sum_squares(const float* gradient, int64_t begin, int64_t end) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  return sum;
}

}  // namespace

Kernel prepare_sum_squares(const NodeView& view, int64_t floats) {
  const int place = graph::kSquares + view.program.buffers[view.node.reads[0]].param;
  const int64_t counted = view.attrs<graph::SquaresAttrs>().counts ? floats : 0;
  return {"loop", static_cast<size_t>(num_chunks(counted)) * sizeof(double), [=](const Bindings& bind) -> Task {
            const auto* gradient = bind.read<float>(0);
            float* square = bind.write<float>(0) + place;
            auto* sums = static_cast<double*>(bind.scratch);
            return [=](const StepContext&) {
              *square = static_cast<float>(sum_chunks(
                  counted, sums, [=](int64_t begin, int64_t end) { return sum_squares(gradient, begin, end); }));
            };
          }};
}

Kernel prepare_clip_norm(const NodeView& view, const OptimizerOptions& options) {
  const int64_t fields = view.read(0).elements();
  const bool watches = view.num_writes() > 1;
  return {"loop", 0, [=, most = options.clip_norm](const Bindings& bind) -> Task {
            auto* agreement = bind.write<float>(0);
            float* watch = watches ? bind.write<float>(1) : nullptr;
            return [=](const StepContext&) {
              double sum = 0;
              for (int64_t i = graph::kSquares; i < fields; ++i) sum += agreement[i];
              const auto norm = static_cast<float>(std::sqrt(sum));
              agreement[graph::kNorm] = norm;
              agreement[graph::kClip] = clip_factor(most, norm);
              for (int64_t i = graph::kSquares; watches && i < fields; ++i) watch[i - graph::kSquares] += agreement[i];
              std::fill(agreement + graph::kSquares, agreement + fields, 0.0f);  // for the next sum over stages
            };
          }};
}

}  // namespace millrace::backend::cpu
