#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_sgd_step(const NodeView& view, const OptimizerOptions& options) {
  const int64_t elements = view.read(0).elements();
  const ParamRule rule(view, options);
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const StepOperands<T> on(rule, at);
    const T momentum = options.momentum, decay = rule.decay;
    return [=](const StepContext& context) {
      const T rate = on.rate(context), factor = on.gradient_factor();
      for (int64_t e = 0; e < elements; ++e) {
        T weight = on.old_weight[e];
        T step = factor * on.gradient[e];
        if (options.decoupled) {
          weight *= 1 - rate * decay;
        } else {
          step += decay * weight;
        }
        if (on.velocity) {
          const T v = momentum * on.velocity[e] + step;
          step = options.nesterov ? step + momentum * v : v;
          on.velocity[e] = v;
        }
        on.weight[e] = weight - rate * step;
      }
      on.clear_gradient(elements);
    };
  });
}

}  // namespace millrace::backend::reference
