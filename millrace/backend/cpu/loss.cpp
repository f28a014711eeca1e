// Softmax cross-entropy with label smoothing, and the counts that accuracy is made of.
#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/loss_unit.h"

namespace millrace::backend::cpu {
namespace {

struct RowResult {
  double loss = 0;
  int64_t better = 0;  // classes ranked before the label
};

RowResult loss_of_row(const float* logits, int64_t classes, int32_t label, double smoothing, float* probabilities) {
  float top = logits[0];
  for (int64_t k = 1; k < classes; ++k) top = std::max(top, logits[k]);
  double sum = 0, total = 0;
  for (int64_t k = 0; k < classes; ++k) {
    const float e = std::exp(logits[k] - top);
    if (probabilities) probabilities[k] = e;
    sum += e;
    total += logits[k];
  }
  if (probabilities) {
    const auto inverse = static_cast<float>(1.0 / sum);
    for (int64_t k = 0; k < classes; ++k) probabilities[k] *= inverse;
  }
  if (label < 0) return {};
  // -sum_k q_k log p_k with log p_k = logit_k - log_sum.
  const double log_sum = top + std::log(sum);
  const float own = logits[label];
  RowResult result;
  result.loss = log_sum - (1 - smoothing) * own - smoothing * total / static_cast<double>(classes);
  for (int64_t k = 0; k < classes; ++k) result.better += logits[k] > own || (logits[k] == own && k < label);
  if (std::isnan(own)) result.better = std::numeric_limits<int64_t>::max();  // never correct, however few the classes
  return result;
}

}  // namespace

Kernel prepare_loss(const NodeView& view) {
  const double smoothing = view.attrs<graph::LossAttrs>().label_smoothing;
  const int64_t batch = view.read(0)[0], classes = view.read(0)[1];
  if (view.node.pass == graph::Pass::InputGrad) {
    return {"loop", 0, [=](const Bindings& bind) -> Task {
              const auto* probabilities = bind.read<float>(0);
              const auto* labels = bind.read<int32_t>(1);
              auto* gradient = bind.write<float>(0);
              return [=](const StepContext& step) {
                const auto weight = static_cast<float>(step.inverse_samples);
                const auto even = static_cast<float>(smoothing / static_cast<double>(classes));
#pragma omp parallel for schedule(static)
                for (int64_t n = 0; n < batch; ++n) {
                  const float* p = probabilities + n * classes;
                  float* g = gradient + n * classes;
                  if (n >= step.rows || labels[n] < 0) {
                    std::fill(g, g + classes, 0.0f);
                    continue;
                  }
                  for (int64_t k = 0; k < classes; ++k) g[k] = (p[k] - even) * weight;
                  g[labels[n]] -= static_cast<float>(1 - smoothing) * weight;
                }
              };
            }};
  }
  const bool keep = view.num_writes() == 2;
  return {"loop", static_cast<size_t>(batch) * sizeof(RowResult), [=](const Bindings& bind) -> Task {
            const auto* logits = bind.read<float>(0);
            const auto* labels = bind.read<int32_t>(1);
            auto* metrics = bind.write<double>(0);
            auto* probabilities = keep ? bind.write<float>(1) : nullptr;
            auto* rows = static_cast<RowResult*>(bind.scratch);
            return [=](const StepContext& step) {
#pragma omp parallel for schedule(static)
              for (int64_t n = 0; n < batch; ++n) {
                const int32_t label = n < step.rows ? labels[n] : -1;
                rows[n] = loss_of_row(logits + n * classes, classes, label, smoothing,
                                      probabilities ? probabilities + n * classes : nullptr);
              }
              for (int64_t n = 0; n < step.rows; ++n) {
                if (labels[n] < 0) continue;
                metrics[graph::kLossSum] += std::rint(rows[n].loss * kLossUnits) / kLossUnits;
                metrics[graph::kTop1] += rows[n].better < 1;
                metrics[graph::kTop5] += rows[n].better < 5;
                metrics[graph::kRows] += 1;
              }
            };
          }};
}

}  // namespace millrace::backend::cpu
