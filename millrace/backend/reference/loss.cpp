#include <algorithm>
#include <cmath>
#include <type_traits>

#include "millrace/backend/loss_unit.h"
#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, classes, rows_per_sample;
  double smoothing;
  std::string name;

  explicit Geometry(const NodeView& view)
      : rows(view.read(0).rows()),
        classes(view.read(0).width()),
        rows_per_sample(rows / std::max<int64_t>(view.read(0)[0], 1)),
        smoothing(view.attrs<graph::LossAttrs>().label_smoothing),
        name(view.node.name) {}

  bool has_loss(int64_t row, int32_t label, const StepContext& context) const {
    if (row >= context.rows * rows_per_sample || label < 0) return false;
    if (label >= classes) fail_input("{}: row {} has label {}, there are {} classes", name, row, label, classes);
    return true;
  }
  // The smoothed target's share of class k.
  double target(int64_t k, int32_t label) const {
    return (k == label ? 1 - smoothing : 0.0) + smoothing / static_cast<double>(classes);
  }
};

// Classes that come before the label's when sorted by logit; of equals, the smaller index comes first.
template <typename T>
int64_t classes_before(const T* logits, int64_t classes, int32_t label) {
  int64_t before = 0;
  for (int64_t k = 0; k < classes; ++k) {
    if (logits[k] > logits[label] || (logits[k] == logits[label] && k < label)) ++before;
  }
  return before;
}

// `saved` may be null. Of a row without a loss it is zero, and nobody looks at it.
template <typename T>
void forward(const Geometry& g, const StepContext& context, const T* logits, const int32_t* labels, double* metrics,
             T* saved) {
  for (int64_t row = 0; row < g.rows; ++row) {
    const T* z = logits + row * g.classes;
    const int32_t label = labels[row];
    if (saved) saved[row] = saved[g.rows + row] = 0;
    if (!g.has_loss(row, label, context)) continue;

    const double largest = *std::max_element(z, z + g.classes);
    double sum = 0;
    for (int64_t k = 0; k < g.classes; ++k) sum += std::exp(z[k] - largest);
    if (saved) {
      saved[row] = static_cast<T>(largest);
      saved[g.rows + row] = static_cast<T>(1 / sum);
    }
    if (context.again) continue;

    double loss = 0;
    for (int64_t k = 0; k < g.classes; ++k) {
      const double target = g.target(k, label);
      // A class that is no target adds nothing, even where its probability is 0.
      if (target != 0) loss -= target * (z[k] - largest - std::log(sum));
    }
    // In double losses are differentiated by differences, and must not have steps.
    metrics[graph::kLossSum] += std::is_same_v<T, float> ? std::rint(loss * kLossUnits) / kLossUnits : loss;
    if (!std::isnan(z[label])) {
      const int64_t before = classes_before(z, g.classes, label);
      if (before < 1) metrics[graph::kTop1] += 1;
      if (before < 5) metrics[graph::kTop5] += 1;
    }
    metrics[graph::kRows] += 1;
  }
}

// Element by element: the gradient may lie over the logits.
template <typename T>
void input_grad(const Geometry& g, const StepContext& context, const T* logits, const int32_t* labels, const T* saved,
                T* dlogits) {
  const double weight = context.inverse_samples / static_cast<double>(g.rows_per_sample);
  for (int64_t row = 0; row < g.rows; ++row) {
    const bool has_loss = g.has_loss(row, labels[row], context);
    for (int64_t k = 0; k < g.classes; ++k) {
      const int64_t e = row * g.classes + k;
      const double probability = has_loss ? std::exp(double{logits[e]} - saved[row]) * saved[g.rows + row] : 0;
      dlogits[e] = has_loss ? static_cast<T>((probability - g.target(k, labels[row])) * weight) : T{0};
    }
  }
}

}  // namespace

Kernel prepare_softmax_cross_entropy(const NodeView& view) {
  const Geometry g(view);
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const bool saves = view.num_writes() > 1;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* logits = at.read<T>(0);
        const int32_t* labels = at.read<int32_t>(1);
        double* metrics = at.write<double>(0);
        T* saved = saves ? at.write<T>(1) : nullptr;
        return [=](const StepContext& context) { forward(g, context, logits, labels, metrics, saved); };
      });
    }
    case graph::Pass::InputGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *logits = at.read<T>(0), *saved = at.read<T>(2);
        const int32_t* labels = at.read<int32_t>(1);
        T* dlogits = at.write<T>(0);
        return [=](const StepContext& context) { input_grad(g, context, logits, labels, saved, dlogits); };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
