// Adam with decoupled weight decay (torch.optim.AdamW), in one pass.
#include <cmath>

#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/cpu/step_operands.h"

namespace millrace::backend::cpu {
namespace {

struct Rule {
  float beta1, beta2, epsilon, decay;
};

template <bool kClearGradient>
void update(const Rule& rule, const StepContext& context, int64_t floats, const StepOperands& on) {
  const float lr = on.rate(context), factor = on.gradient_factor();
  const auto step = static_cast<float>(lr / bias_correction(rule.beta1, context.update + 1));
  const auto inverse_root = static_cast<float>(1 / std::sqrt(bias_correction(rule.beta2, context.update + 1)));
  const float keep = 1.0f - lr * rule.decay, new1 = 1.0f - rule.beta1, new2 = 1.0f - rule.beta2;
  const float* old_w = on.old_weight;
  float *w = on.weight, *g = on.gradient, *m = on.velocity, *v = on.second_moment;
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < floats; ++i) {
    const float gradient = factor * g[i];
    m[i] = rule.beta1 * m[i] + new1 * gradient;
    v[i] = rule.beta2 * v[i] + new2 * gradient * gradient;
    w[i] = keep * old_w[i] - step * m[i] / (std::sqrt(v[i]) * inverse_root + rule.epsilon);
    if constexpr (kClearGradient) g[i] = 0.0f;
  }
}

}  // namespace

Kernel prepare_adam(const NodeView& view, int64_t floats, const OptimizerOptions& options) {
  const ParamRule param(view, options);
  const Rule rule{options.beta1, options.beta2, options.epsilon, param.decay};
  const auto run = param.clears_gradient ? update<true> : update<false>;
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const StepOperands on(param, bind);
            return [=](const StepContext& context) { run(rule, context, floats, on); };
          }};
}

}  // namespace millrace::backend::cpu
