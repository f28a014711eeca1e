// What a step of any optimizer works on. Elements are taken as they lie, with the padding of blocked weights: it is
// zero in weight, gradient and slots, and every step leaves it so.
#pragma once

#include "millrace/backend/optimizer.h"

namespace millrace::backend::cpu {

// Null where the step has none of it.
struct StepOperands {
  const float* old_weight;  // may be an older version's memory, or the weight's
  float *weight, *gradient, *velocity, *second_moment;
  const float* agreement;
  ParamRule rule;

  StepOperands(const ParamRule& of, const Bindings& bind)
      : old_weight(bind.read<float>(0)),
        weight(bind.write<float>(0)),
        gradient(static_cast<float*>(bind.reads[1])),
        rule(of) {
    const auto find = [&](int read) {
      return read < 0 ? nullptr : static_cast<float*>(bind.reads[static_cast<size_t>(read)]);
    };
    velocity = find(of.at.velocity);
    second_moment = find(of.at.second_moment);
    agreement = find(of.at.agreement);
  }
  float rate(const StepContext& context) const { return context.learning_rate * rule.rate; }
  float gradient_factor() const { return rule.at.clips ? agreement[graph::kClip] : 1.0f; }
};

}  // namespace millrace::backend::cpu
