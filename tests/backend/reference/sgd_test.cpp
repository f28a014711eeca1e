#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

// w = 2, dw = 3, velocity = 4, learning rate 0.5; numbers that are exact in binary.
Plain step_of(const OptimizerOptions& sgd, NodeSpec spec = {}) {
  spec.kind = OpKind::SgdStep;
  spec.pass = Pass::Update;
  spec.x = {1};
  const auto backend = make_reference_backend(sgd);
  const OneNode one = build(spec);
  Plain plain{{"w", {2}}, {"dw", {3}}};
  if (spec.velocity) plain["velocity"] = {4};
  return run_node(*backend, one, {.learning_rate = 0.5f}, plain);
}

TEST(ReferenceSgd, WithoutVelocityFollowsTheGradient) {
  EXPECT_EQ(step_of({}, {.velocity = false}), (Plain{{"w", {0.5}}}));
}

TEST(ReferenceSgd, MomentumKeepsVelocity) {
  EXPECT_EQ(step_of({.momentum = 0.5}), (Plain{{"velocity", {5}}, {"w", {-0.5}}}));
}

TEST(ReferenceSgd, NesterovLooksAhead) {
  EXPECT_EQ(step_of({.momentum = 0.5, .nesterov = true}), (Plain{{"velocity", {5}}, {"w", {-0.75}}}));
}

TEST(ReferenceSgd, DecayAddsToTheGradient) {
  // g = 3 + 0.25 * 2 = 3.5; v = 2 + 3.5.
  EXPECT_EQ(step_of({.momentum = 0.5, .weight_decay = 0.25}), (Plain{{"velocity", {5.5}}, {"w", {-0.75}}}));
}

TEST(ReferenceSgd, DecoupledDecayLeavesVelocityAlone) {
  // w = 2 * (1 - 0.5 * 0.25) = 1.75, then - 0.5 * 5.
  EXPECT_EQ(step_of({.momentum = 0.5, .weight_decay = 0.25, .decoupled = true}),
            (Plain{{"velocity", {5}}, {"w", {-0.75}}}));
}

TEST(ReferenceSgd, BiasAndNormMayGoWithoutDecay) {
  using graph::ParamRole;
  const OptimizerOptions sgd{.weight_decay = 0.25, .decay_bias = false, .decay_norm = false};
  EXPECT_EQ(step_of(sgd, {.velocity = false, .role = ParamRole::Weight}), (Plain{{"w", {0.25}}}));
  for (ParamRole role : {ParamRole::Bias, ParamRole::NormScale, ParamRole::NormShift}) {
    EXPECT_EQ(step_of(sgd, {.velocity = false, .role = role}), (Plain{{"w", {0.5}}}));
  }
}

TEST(ReferenceSgd, GradientSumIsClearedForTheNextStep) {
  EXPECT_EQ(step_of({}, {.velocity = false, .gradient_sum = true}), (Plain{{"dw", {0}}, {"w", {0.5}}}));
}

}  // namespace
}  // namespace millrace::backend::harness
