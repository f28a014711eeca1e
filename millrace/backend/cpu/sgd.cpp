// Stochastic gradient descent in one pass: decay, momentum and step read and write each element once.
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

struct Rule {
  float momentum, l2, decoupled_decay;
  bool nesterov;
};

template <bool kVelocity, bool kClearGradient>
void update(const Rule& rule, float lr, int64_t floats, const float* old_w, float* w, float* g, float* v) {
  const float keep = 1.0f - lr * rule.decoupled_decay;
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < floats; ++i) {
    const float gradient = g[i] + rule.l2 * old_w[i];
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

Kernel prepare_sgd(const NodeView& view, int64_t floats, const SgdOptions& sgd) {
  const float decay = sgd.decay_for(view.param_role(view.node.reads[0]));
  const Rule rule{sgd.momentum, sgd.decoupled ? 0.0f : decay, sgd.decoupled ? decay : 0.0f, sgd.nesterov};
  const bool velocity = view.num_reads() == 3;
  // A sum over micro-batches starts again from zero after its use.
  const bool clear = view.program.buffers[view.node.reads[1]].role == graph::BufferRole::GradientSum;
  const auto run = velocity ? (clear ? update<true, true> : update<true, false>)
                            : (clear ? update<false, true> : update<false, false>);
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* old_w = bind.read<float>(0);  // may be an older version's memory, or w itself
            auto* w = bind.write<float>(0);
            auto* g = static_cast<float*>(bind.reads[1]);
            auto* v = velocity ? bind.write<float>(1) : nullptr;
            return [=](const StepContext& step) { run(rule, step.learning_rate, floats, old_w, w, g, v); };
          }};
}

}  // namespace millrace::backend::cpu
