#include <algorithm>
#include <cmath>
#include <type_traits>

#include "millrace/backend/loss_unit.h"
#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, classes;
  double smoothing;
  std::string name;

  bool is_sample(int64_t row, int32_t label, const StepContext& context) const {
    if (row >= context.rows || label < 0) return false;
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

template <typename T>
void forward(const Geometry& g, const StepContext& context, const T* logits, const int32_t* labels, double* metrics,
             T* probabilities) {
  for (int64_t row = 0; row < g.rows; ++row) {
    const T* z = logits + row * g.classes;
    const double largest = *std::max_element(z, z + g.classes);
    double sum = 0;
    for (int64_t k = 0; k < g.classes; ++k) sum += std::exp(z[k] - largest);
    const auto log_probability = [&](int64_t k) { return z[k] - largest - std::log(sum); };

    const int32_t label = labels[row];
    if (g.is_sample(row, label, context)) {
      double loss = 0;
      for (int64_t k = 0; k < g.classes; ++k) {
        const double target = g.target(k, label);
        // A class that is no target adds nothing, even where its probability is 0.
        if (target != 0) loss -= target * log_probability(k);
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

    // Last, as the probabilities may lie over the logits.
    if (probabilities) {
      T* p = probabilities + row * g.classes;
      for (int64_t k = 0; k < g.classes; ++k) p[k] = static_cast<T>(std::exp(z[k] - largest) / sum);
    }
  }
}

template <typename T>
void input_grad(const Geometry& g, const StepContext& context, const T* probabilities, const int32_t* labels,
                T* dlogits) {
  for (int64_t row = 0; row < g.rows; ++row) {
    const bool sample = g.is_sample(row, labels[row], context);
    for (int64_t k = 0; k < g.classes; ++k) {
      const int64_t e = row * g.classes + k;
      dlogits[e] =
          sample ? static_cast<T>((probabilities[e] - g.target(k, labels[row])) * context.inverse_samples) : T{0};
    }
  }
}

}  // namespace

Kernel prepare_softmax_cross_entropy(const NodeView& view) {
  const Geometry g{view.read(0)[0], view.read(0)[1], view.attrs<graph::LossAttrs>().label_smoothing, view.node.name};
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const bool has_probabilities = view.num_writes() > 1;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* logits = at.read<T>(0);
        const int32_t* labels = at.read<int32_t>(1);
        double* metrics = at.write<double>(0);
        T* probabilities = has_probabilities ? at.write<T>(1) : nullptr;
        return [=](const StepContext& context) { forward(g, context, logits, labels, metrics, probabilities); };
      });
    }
    case graph::Pass::InputGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* probabilities = at.read<T>(0);
        const int32_t* labels = at.read<int32_t>(1);
        T* dlogits = at.write<T>(0);
        return [=](const StepContext& context) { input_grad(g, context, probabilities, labels, dlogits); };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
