// LAMB (You et al. 2019) in two passes: the first moves the means and sums the squares of weight and direction, the
// second makes the direction once more, now that its length is known. What has no decay keeps Adam's length.
#include <cmath>

#include "millrace/backend/cpu/chunk_sums.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/cpu/step_operands.h"

namespace millrace::backend::cpu {
namespace {

struct Rule {
  float beta1, beta2, epsilon, decay;
};

// Sums of squares.
struct Norms {
  double weight = 0, direction = 0;
  void operator+=(const Norms& other) {
    weight += other.weight;
    direction += other.direction;
  }
};

// What of Adam's direction is the same for all elements of a step.
struct Corrections {
  float inverse1, inverse_root2, epsilon, decay;

  Corrections(const Rule& rule, int64_t steps)
      : inverse1(static_cast<float>(1 / bias_correction(rule.beta1, steps))),
        inverse_root2(static_cast<float>(1 / std::sqrt(bias_correction(rule.beta2, steps)))),
        epsilon(rule.epsilon),
        decay(rule.decay) {}
  float direction(float m, float v, float w) const {
    return inverse1 * m / (std::sqrt(v) * inverse_root2 + epsilon) + decay * w;
  }
};

template <bool kClearGradient>
Norms move_means(const Rule& rule, const Corrections& corrections, const StepOperands& on, int64_t begin, int64_t end) {
  const float factor = on.gradient_factor(), new1 = 1.0f - rule.beta1, new2 = 1.0f - rule.beta2;
  const float* old_w = on.old_weight;
  float *g = on.gradient, *m = on.velocity, *v = on.second_moment;
  double weight = 0, direction = 0;
#pragma omp simd reduction(+ : weight, direction)
  for (int64_t i = begin; i < end; ++i) {
    const float gradient = factor * g[i];
    m[i] = rule.beta1 * m[i] + new1 * gradient;
    v[i] = rule.beta2 * v[i] + new2 * gradient * gradient;
    if constexpr (kClearGradient) g[i] = 0.0f;
    const double w = old_w[i], u = corrections.direction(m[i], v[i], old_w[i]);
    weight += w * w;
    direction += u * u;
  }
  return {weight, direction};
}

template <bool kClearGradient>
void update(const Rule& rule, const StepContext& context, int64_t floats, const StepOperands& on, Norms* scratch) {
  const Corrections corrections(rule, context.update + 1);
  const Norms norms = sum_chunks(floats, scratch, [&](int64_t begin, int64_t end) {
    return move_means<kClearGradient>(rule, corrections, on, begin, end);
  });
  const bool adapts = rule.decay != 0 && norms.weight > 0 && norms.direction > 0;
  const double ratio = adapts ? std::sqrt(norms.weight) / std::sqrt(norms.direction) : 1;
  const auto step = static_cast<float>(on.rate(context) * ratio);
  const float *old_w = on.old_weight, *m = on.velocity, *v = on.second_moment;
  float* w = on.weight;
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < floats; ++i) w[i] = old_w[i] - step * corrections.direction(m[i], v[i], old_w[i]);
}

}  // namespace

Kernel prepare_lamb(const NodeView& view, int64_t floats, const OptimizerOptions& options) {
  const ParamRule param(view, options);
  const Rule rule{options.beta1, options.beta2, options.epsilon, param.decay};
  const auto run = param.clears_gradient ? update<true> : update<false>;
  const size_t scratch_bytes = static_cast<size_t>(num_chunks(floats)) * sizeof(Norms);
  return {"loop", scratch_bytes, [=](const Bindings& bind) -> Task {
            const StepOperands on(param, bind);
            auto* norms = static_cast<Norms*>(bind.scratch);
            return [=](const StepContext& context) { run(rule, context, floats, on, norms); };
          }};
}

}  // namespace millrace::backend::cpu
