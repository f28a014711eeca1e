#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

class CudaSgd : public CudaKernels {
 protected:
  // The reference has the weight in f32: of half types the master is what must follow it closely.
  void expect_steps_agree(NodeSpec spec, const StepContext& context) {
    ++seed_;
    for (DType dtype : kTypes) {
      if (spec.loss_scale && dtype != DType::F16) continue;
      spec.dtype = dtype;
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " on " << spec.x.str() << ", loss scale "
                                      << spec.loss_scale);
      const OneNode one = build_as_emitted(spec);
      const Plain plain = random_rounded(one, context, seed_);
      Plain unscaled = plain;
      if (spec.loss_scale) {
        for (float& value : unscaled.at("dw")) value /= kLossScale;
      }
      NodeSpec plain_spec = spec;
      plain_spec.loss_scale = false;
      Plain expected = run_node(*reference_, build_for_reference(plain_spec), context, unscaled);
      expected["master"] = expected.at("w");
      const Plain actual = run_node(*cuda_, one, context, plain);
      for (const auto& [name, got] : actual) {
        const bool rounds = name == "w" && is_half(dtype);
        expect_near(name, expected.at(name), got, got.size(), rounds ? tolerance_of(dtype) : 1e-5);
      }
      if (is_half(dtype) && spec.role == graph::ParamRole::Weight) {
        for (size_t i = 0; i < actual.at("w").size(); ++i) {
          EXPECT_EQ(actual.at("w")[i], rounded(actual.at("master")[i], dtype)) << "element " << i;
        }
      }
    }
  }
};

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
    for (int form = 0; form < 8; ++form) {
      for (graph::ParamRole role : {graph::ParamRole::Weight, graph::ParamRole::Bias, graph::ParamRole::NormScale}) {
        NodeSpec spec{.kind = OpKind::SgdStep, .pass = Pass::Update, .x = {7, 5}};
        spec.velocity = bit(form, 0);
        spec.gradient_sum = bit(form, 1);
        spec.loss_scale = bit(form, 2);
        spec.role = role;
        SCOPED_TRACE(testing::Message() << "options " << options << ", form " << form << ", role "
                                        << static_cast<int>(role));
        expect_steps_agree(spec, context);
        if (HasFailure()) return;
      }
    }
  }
}

// Weights of convolutions have a layout of their own, and padding that stays as it is.
TEST_F(CudaSgd, EveryShapeAgreesWithReference) {
  use({.momentum = 0.9f, .weight_decay = 0.01f});
  for (const Shape& x : {Shape{1}, Shape{13}, Shape{1000, 513}, Shape{64, 3, 7, 7}, Shape{13, 5, 3, 3},
                         Shape{64, 64, 1, 1}, Shape{8, 1, 3, 3}}) {
    for (bool gradient_sum : {false, true}) {
      NodeSpec spec{.kind = OpKind::SgdStep, .pass = Pass::Update, .x = x};
      spec.gradient_sum = gradient_sum;
      expect_steps_agree(spec, {.rows = 1, .learning_rate = 0.1f});
    }
  }
}

TEST_F(CudaSgd, GradientsThatAreNotFiniteLeaveTheWeight) {
  NodeSpec spec{.kind = OpKind::SgdStep, .pass = Pass::Update, .x = {5, 7}, .dtype = DType::F16};
  spec.loss_scale = true;
  const OneNode one = build_as_emitted(spec);
  const StepContext context{.rows = 1, .learning_rate = 0.1f};
  Plain plain = random_rounded(one, context, 1);
  plain.at("loss_scale")[graph::kOverflow] = 1;
  plain.at("dw")[3] = INFINITY;
  const Plain results = run_node(*cuda_, one, context, plain);
  for (const char* name : {"w", "velocity", "master"}) EXPECT_EQ(results.at(name), plain.at(name)) << name;
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
