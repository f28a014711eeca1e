#include "backend/cuda/step_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using CudaSgd = CudaSteps;

// Every combination of what the optimizer can be told.
TEST_F(CudaSgd, EveryRuleAgreesWithReference) {
  const StepContext context{.rows = 1, .learning_rate = 0.1f};
  auto bit = [](int bits, int i) { return (bits >> i & 1) == 1; };
  for (int options = 0; options < 16; ++options) {
    use({.momentum = 0.9f,
         .nesterov = bit(options, 0),
         .weight_decay = bit(options, 1) ? 0.01f : 0.0f,
         .decoupled = bit(options, 2),
         .decay_bias = bit(options, 3),
         .decay_norm = bit(options, 3)});
    for (int form = 0; form < 16; ++form) {
      for (graph::ParamRole role : {graph::ParamRole::Weight, graph::ParamRole::Bias, graph::ParamRole::NormScale}) {
        NodeSpec spec{.kind = OpKind::SgdStep, .pass = Pass::Update, .x = {7, 5}};
        spec.velocity = bit(form, 0);
        spec.gradient_sum = bit(form, 1);
        spec.loss_scale = bit(form, 2);
        spec.clips = bit(form, 3);
        spec.role = role;
        SCOPED_TRACE(testing::Message() << "options " << options << ", form " << form << ", role "
                                        << static_cast<int>(role));
        expect_steps_agree(spec, context);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
