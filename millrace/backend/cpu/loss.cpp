// Softmax cross-entropy with label smoothing, and the counts that accuracy is made of. A row may be as wide as a
// vocabulary: its exponentials are made in vectors, and it stays in the cache between the passes over it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/backend/cpu/exponential.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/loss_unit.h"
#include "millrace/base/error.h"

namespace millrace::backend::cpu {
namespace {

struct Geometry {
  int64_t rows, classes, rows_per_sample;
  double smoothing;

  explicit Geometry(const NodeView& view)
      : rows(view.read(0).rows()),
        classes(view.read(0).width()),
        rows_per_sample(rows / std::max<int64_t>(view.read(0)[0], 1)),
        smoothing(view.attrs<graph::LossAttrs>().label_smoothing) {}

  int64_t sample_rows(const StepContext& step) const { return step.rows * rows_per_sample; }
  // Of a row that has no loss: below zero.
  int32_t label(const int32_t* labels, int64_t row, const StepContext& step) const {
    return row < sample_rows(step) ? labels[row] : -1;
  }
  void check(const int32_t* labels, const StepContext& step, const std::string& name) const {
    for (int64_t row = 0; row < sample_rows(step); ++row) {
      if (labels[row] < classes) continue;
      fail_input("{}: row {} has label {}, there are {} classes", name, row, labels[row], classes);
    }
  }
};

// visit(vector, its first place, how many lanes of it there are) for a row that need not be whole vectors; the lanes
// behind its end are minus infinity.
template <typename Visit>
void each_vector(const float* row, int64_t begin, int64_t end, const Visit& visit) {
  int64_t at = begin;
  for (; at + kBlock <= end; at += kBlock) {
    Lanes lanes;
    std::memcpy(&lanes, row + at, sizeof lanes);
    visit(lanes, at, kBlock);
  }
  if (at == end) return;
  Lanes lanes = splat(-INFINITY);
  std::memcpy(&lanes, row + at, static_cast<size_t>(end - at) * sizeof(float));
  visit(lanes, at, static_cast<int>(end - at));
}

// Without the largest, which keeps them small: sum of exp(z - largest). Few at a time in floats, in double then.
double sum_of_exponentials(const float* z, int64_t classes, float largest) {
  constexpr int64_t kTogether = int64_t{32} * kBlock;
  double total = 0;
  for (int64_t begin = 0; begin < classes; begin += kTogether) {
    Lanes sum{};
    each_vector(z, begin, std::min(begin + kTogether, classes),
                [&](Lanes lanes, int64_t, int) { sum += exponential(lanes - largest); });
    for (int lane = 0; lane < kBlock; ++lane) total += double{sum[lane]};
  }
  return total;
}

float largest_of(const float* z, int64_t classes) {
  float largest = z[0];
#pragma omp simd reduction(max : largest)
  for (int64_t k = 1; k < classes; ++k) largest = z[k] > largest ? z[k] : largest;
  return largest;
}

// Classes ranked before the label: of equals, the smaller index comes first.
int64_t classes_before(const float* z, int64_t classes, int32_t label) {
  const float own = z[label];
  if (std::isnan(own)) return std::numeric_limits<int64_t>::max();  // never correct, however few the classes
  int32_t before = 0;
#pragma omp simd reduction(+ : before)
  for (int64_t k = 0; k < label; ++k) before += z[k] >= own;
#pragma omp simd reduction(+ : before)
  for (int64_t k = label + 1; k < classes; ++k) before += z[k] > own;
  return before;
}

struct RowResult {
  double loss = 0;
  float largest = 0, inverse_sum = 0;
  int64_t before = 0;
};

RowResult loss_of_row(const Geometry& g, const float* z, int32_t label) {
  const float largest = largest_of(z, g.classes);
  const double sum = sum_of_exponentials(z, g.classes, largest), log_sum = std::log(sum);
  // -sum_k q_k log p_k with log p_k = z_k - largest - log_sum.
  double loss = log_sum + (double{largest} - z[label]);
  if (g.smoothing != 0) {
    double distances = 0;
#pragma omp simd reduction(+ : distances)
    for (int64_t k = 0; k < g.classes; ++k) distances += z[k] - z[label];
    loss -= g.smoothing * distances / static_cast<double>(g.classes);
  }
  return {loss, largest, static_cast<float>(1 / sum), classes_before(z, g.classes, label)};
}

void gradient_of_row(const Geometry& g, const float* z, int32_t label, float largest, float inverse_sum, float weight,
                     float* dz) {
  const auto even = static_cast<float>(g.smoothing / static_cast<double>(g.classes));
  // Before its place is written: the gradient may lie over the logits.
  const float own = z[label];
  each_vector(z, 0, g.classes, [&](Lanes lanes, int64_t at, int count) {
    const Lanes gradient = (exponential(lanes - largest) * inverse_sum - even) * weight;
    std::memcpy(dz + at, &gradient, static_cast<size_t>(count) * sizeof(float));
  });
  const double probability = std::exp(double{own} - largest) * inverse_sum;
  dz[label] = static_cast<float>((probability - even - (1 - g.smoothing)) * weight);
}

Kernel prepare_input_grad(const Geometry& g, const std::string& name) {
  return {"rows", 0, [=](const Bindings& bind) -> Task {
            const auto* logits = bind.read<float>(0);
            const auto* labels = bind.read<int32_t>(1);
            const auto* saved = bind.read<float>(2);
            auto* gradient = bind.write<float>(0);
            return [=](const StepContext& step) {
              g.check(labels, step, name);
              const auto weight = static_cast<float>(step.inverse_samples / static_cast<double>(g.rows_per_sample));
#pragma omp parallel for schedule(static)
              for (int64_t row = 0; row < g.rows; ++row) {
                const int32_t label = g.label(labels, row, step);
                const int64_t first = row * g.classes;
                if (label < 0) {
                  std::fill_n(gradient + first, g.classes, 0.0f);
                } else {
                  gradient_of_row(g, logits + first, label, saved[row], saved[g.rows + row], weight, gradient + first);
                }
              }
            };
          }};
}

Kernel prepare_forward(const Geometry& g, const std::string& name, bool saves) {
  return {"rows", static_cast<size_t>(g.rows) * sizeof(RowResult), [=](const Bindings& bind) -> Task {
            const auto* logits = bind.read<float>(0);
            const auto* labels = bind.read<int32_t>(1);
            auto* metrics = bind.write<double>(0);
            auto* saved = saves ? bind.write<float>(1) : nullptr;
            auto* results = static_cast<RowResult*>(bind.scratch);
            return [=](const StepContext& step) {
              g.check(labels, step, name);
#pragma omp parallel for schedule(static)
              for (int64_t row = 0; row < g.rows; ++row) {
                const int32_t label = g.label(labels, row, step);
                results[row] = label < 0 ? RowResult{} : loss_of_row(g, logits + row * g.classes, label);
                if (!saved) continue;
                saved[row] = results[row].largest;
                saved[g.rows + row] = results[row].inverse_sum;
              }
              for (int64_t row = 0; row < g.rows && !step.again; ++row) {
                if (g.label(labels, row, step) < 0) continue;
                metrics[graph::kLossSum] += std::rint(results[row].loss * kLossUnits) / kLossUnits;
                metrics[graph::kTop1] += results[row].before < 1;
                metrics[graph::kTop5] += results[row].before < 5;
                metrics[graph::kRows] += 1;
              }
            };
          }};
}

}  // namespace

Kernel prepare_loss(const NodeView& view) {
  const Geometry g(view);
  if (view.node.pass == graph::Pass::InputGrad) return prepare_input_grad(g, view.node.name);
  return prepare_forward(g, view.node.name, view.num_writes() == 2);
}

}  // namespace millrace::backend::cpu
