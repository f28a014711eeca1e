// Stochastic gradient descent in one pass: decay, momentum and step read and write each element once.
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/cpu/step_operands.h"

namespace millrace::backend::cpu {
namespace {

struct Rule {
  float momentum, l2, decoupled_decay;
  bool nesterov;
};

template <bool kVelocity, bool kClearGradient>
void update(const Rule& rule, const StepContext& context, int64_t floats, const StepOperands& on) {
  const float lr = on.rate(context), factor = on.gradient_factor();
  const float keep = 1.0f - lr * rule.decoupled_decay;
  const float* old_w = on.old_weight;
  float *w = on.weight, *g = on.gradient, *v = on.velocity;
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < floats; ++i) {
    const float gradient = factor * g[i] + rule.l2 * old_w[i];
    float direction = gradient;
    if constexpr (kVelocity) {
      v[i] = rule.momentum * v[i] + gradient;
      direction = rule.nesterov ? gradient + rule.momentum * v[i] : v[i];
    }
    w[i] = keep * old_w[i] - lr * direction;
    if constexpr (kClearGradient) g[i] = 0.0f;
  }
}

}  // namespace

Kernel prepare_sgd(const NodeView& view, int64_t floats, const OptimizerOptions& options) {
  const ParamRule param(view, options);
  const float l2 = options.decoupled ? 0.0f : param.decay, decoupled_decay = options.decoupled ? param.decay : 0.0f;
  const Rule rule{options.momentum, l2, decoupled_decay, options.nesterov};
  const bool velocity = param.at.velocity >= 0, clear = param.clears_gradient;
  const auto run = velocity ? (clear ? update<true, true> : update<true, false>)
                            : (clear ? update<false, true> : update<false, false>);
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const StepOperands on(param, bind);
            return [=](const StepContext& context) { run(rule, context, floats, on); };
          }};
}

}  // namespace millrace::backend::cpu
