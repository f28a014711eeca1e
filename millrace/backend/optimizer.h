// What backends have in common of optimizers: constants, operands, and the rules that are the same for all.
#pragma once

#include <algorithm>
#include <cmath>

#include "millrace/backend/backend.h"

namespace millrace::backend {

// How the factor on the gradients of f16 follows them.
struct ScaleRule {
  float factor = 2;
  int interval = 2000;
  float floor = 1;
};

// The optimizer's constants, fixed at preparation.
struct OptimizerOptions {
  float momentum = 0;                                   // SgdStep
  bool nesterov = false;                                // SgdStep
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;  // AdamStep and LambStep
  float weight_decay = 0;
  bool decoupled = false;  // SgdStep: decay the weight by lr * decay instead of adding to the gradient
  bool decay_bias = true;
  bool decay_norm = true;
  float clip_norm = 0;  // ClipNorm
  float layer_decay = 1;
  ScaleRule scale = {};
  float decay_for(graph::ParamRole role) const {
    if (role == graph::ParamRole::Bias && !decay_bias) return 0;
    const bool norm = role == graph::ParamRole::NormScale || role == graph::ParamRole::NormShift;
    return norm && !decay_norm ? 0 : weight_decay;
  }
};

// The operands of an update that not every one has, as places among its reads; -1: it has none.
struct UpdateOperands {
  int velocity = -1, second_moment = -1, master = -1, agreement = -1;
  bool scales = false;  // the gradient carries a loss scale, and the update may be left out
  bool clips = false;

  explicit UpdateOperands(const NodeView& view) {
    for (int i = 0; i < view.num_reads(); ++i) {
      const graph::Buffer& buffer = view.program.buffers[view.node.reads[static_cast<size_t>(i)]];
      if (buffer.role == graph::BufferRole::Velocity) velocity = i;
      if (buffer.role == graph::BufferRole::SecondMoment) second_moment = i;
      if (buffer.role == graph::BufferRole::Master) master = i;
      if (buffer.role != graph::BufferRole::Agreement) continue;
      agreement = i;
      scales = view.graph.dtype == DType::F16;
      clips = buffer.shape[0] > graph::kSquares;
    }
  }
};

// What gradients are multiplied by so that their norm is `most`; 0: any is allowed. A norm that is not a number makes
// a factor that is none.
inline float clip_factor(float most, float norm) {
  if (most == 0) return 1;
  const float factor = most / (norm + 1e-6f);
  return factor > 1 ? 1 : factor;
}

// What a parameter's learning rate is multiplied by: less for layers further from the head.
inline float rate_of(const OptimizerOptions& options, const graph::Graph& graph, const graph::Param& param) {
  if (options.layer_decay == 1) return 1;
  int deepest = 0;
  for (const graph::Param& other : graph.params) deepest = std::max(deepest, other.depth);
  return static_cast<float>(std::pow(options.layer_decay, deepest - param.depth));
}

// Of one parameter's step, what is the same in every update.
struct ParamRule {
  UpdateOperands at;
  float decay = 0, rate = 1;
  bool clears_gradient = false;  // a sum over micro-batches starts again from zero

  ParamRule(const NodeView& view, const OptimizerOptions& options) : at(view) {
    const graph::Param& param = view.param(view.node.reads[0]);
    decay = options.decay_for(param.role);
    rate = rate_of(options, view.graph, param);
    clears_gradient = view.program.buffers[view.node.reads[1]].role == graph::BufferRole::GradientSum;
  }
};

// What a mean with factor `beta` that began at zero has seen of its numbers after so many steps: less than 1.
inline double bias_correction(float beta, int64_t steps) {
  return 1 - std::pow(static_cast<double>(beta), static_cast<double>(steps));
}

}  // namespace millrace::backend
