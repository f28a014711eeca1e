// The means of a gradient and of its square that Adam and LAMB keep, and the direction they give.
#pragma once

#include <cmath>

#include "millrace/backend/optimizer.h"

namespace millrace::backend::cuda {

struct MeansRule {
  float beta1, beta2, epsilon;
  float log_beta1, log_beta2;

  explicit MeansRule(const OptimizerOptions& options)
      : beta1(options.beta1),
        beta2(options.beta2),
        epsilon(options.epsilon),
        log_beta1(static_cast<float>(std::log(static_cast<double>(beta1)))),
        log_beta2(static_cast<float>(std::log(static_cast<double>(beta2)))) {}
};

// The means began at zero: what makes up for it after so many steps. 1 - beta^steps, without the loss of digits that
// the difference has in f32.
struct MeansCorrection {
  float inverse1, inverse_root2;

  __device__ MeansCorrection(const MeansRule& rule, float steps)
      : inverse1(-1 / expm1f(steps * rule.log_beta1)), inverse_root2(1 / sqrtf(-expm1f(steps * rule.log_beta2))) {}
};

__device__ inline void move_means(const MeansRule& rule, float gradient, float& m, float& v) {
  m = rule.beta1 * m + (1 - rule.beta1) * gradient;
  v = rule.beta2 * v + (1 - rule.beta2) * gradient * gradient;
}

// The denominator is at least epsilon, and far from where a quick division ends.
__device__ inline float adam_direction(const MeansRule& rule, const MeansCorrection& correction, float m, float v) {
  return __fdividef(correction.inverse1 * m, sqrtf(v) * correction.inverse_root2 + rule.epsilon);
}

}  // namespace millrace::backend::cuda
