// LAMB (You et al. 2019): Adam's direction, as long for each parameter as the parameter itself. What has no decay keeps
// Adam's length, as in NVIDIA's apex; norms of gradients are ClipNorm's business.
#include <cmath>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_lamb_step(const NodeView& view, const OptimizerOptions& options) {
  const int64_t elements = view.read(0).elements();
  const ParamRule rule(view, options);
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const StepOperands<T> on(rule, at);
    const T beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon, decay = rule.decay;
    return [=](const StepContext& context) {
      const T factor = on.gradient_factor();
      const T correction1 = static_cast<T>(bias_correction(options.beta1, context.update + 1));
      const T correction2 = static_cast<T>(bias_correction(options.beta2, context.update + 1));
      const auto direction = [=](int64_t e) {
        const T root = std::sqrt(on.second_moment[e] / correction2);
        return on.velocity[e] / correction1 / (root + epsilon) + decay * on.old_weight[e];
      };
      double weights = 0, directions = 0;  // sums of squares
      for (int64_t e = 0; e < elements; ++e) {
        const T g = factor * on.gradient[e];
        on.velocity[e] = beta1 * on.velocity[e] + (1 - beta1) * g;
        on.second_moment[e] = beta2 * on.second_moment[e] + (1 - beta2) * g * g;
        const double w = on.old_weight[e], u = direction(e);
        weights += w * w;
        directions += u * u;
      }
      const bool adapts = decay != 0 && weights > 0 && directions > 0;
      const T ratio = adapts ? static_cast<T>(std::sqrt(weights) / std::sqrt(directions)) : T{1};
      for (int64_t e = 0; e < elements; ++e) {
        on.weight[e] = on.old_weight[e] - on.rate(context) * ratio * direction(e);
      }
      on.clear_gradient(elements);
    };
  });
}

}  // namespace millrace::backend::reference
