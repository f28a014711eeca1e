#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using CpuSgd = CpuKernels;

// Every combination of what the optimizer can be told.
TEST_F(CpuSgd, EveryRuleAgreesWithReference) {
  const StepContext context{.rows = 1, .learning_rate = 0.1f};
  for (int bits = 0; bits < 64; ++bits) {
    auto bit = [&](int i) { return (bits >> i & 1) == 1; };
    const OptimizerOptions sgd{.momentum = 0.9f,
                               .nesterov = bit(0),
                               .weight_decay = bit(1) ? 0.01f : 0.0f,
                               .decoupled = bit(2),
                               .decay_bias = bit(3),
                               .decay_norm = bit(3)};
    reference_ = make_reference_backend(sgd);
    cpu_ = make_cpu_backend({.threads = 2}, sgd);
    for (graph::ParamRole role : {graph::ParamRole::Weight, graph::ParamRole::Bias, graph::ParamRole::NormScale}) {
      NodeSpec spec{.kind = OpKind::SgdStep, .pass = Pass::Update, .x = {7, 5}};
      spec.velocity = bit(4);
      spec.gradient_sum = bit(5);
      spec.role = role;
      SCOPED_TRACE(testing::Message() << "options " << bits << ", role " << static_cast<int>(role));
      expect_agrees(spec, context);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
