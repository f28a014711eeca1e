// Adam with decoupled weight decay (Loshchilov and Hutter 2019), in the arithmetic of torch.optim.AdamW.
#include <cmath>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_adam_step(const NodeView& view, const OptimizerOptions& options) {
  const int64_t elements = view.read(0).elements();
  const ParamRule rule(view, options);
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const StepOperands<T> on(rule, at);
    const T beta1 = options.beta1, beta2 = options.beta2, epsilon = options.epsilon, decay = rule.decay;
    return [=](const StepContext& context) {
      const T rate = on.rate(context), factor = on.gradient_factor();
      const T correction1 = static_cast<T>(bias_correction(options.beta1, context.update + 1));
      const T root2 = static_cast<T>(std::sqrt(bias_correction(options.beta2, context.update + 1)));
      for (int64_t e = 0; e < elements; ++e) {
        const T g = factor * on.gradient[e];
        const T m = on.velocity[e] = beta1 * on.velocity[e] + (1 - beta1) * g;
        const T v = on.second_moment[e] = beta2 * on.second_moment[e] + (1 - beta2) * g * g;
        const T weight = on.old_weight[e] * (1 - rate * decay);
        on.weight[e] = weight - rate / correction1 * m / (std::sqrt(v) / root2 + epsilon);
      }
      on.clear_gradient(elements);
    };
  });
}

}  // namespace millrace::backend::reference
