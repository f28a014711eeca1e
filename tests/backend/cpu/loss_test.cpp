#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using CpuLoss = CpuKernels;

TEST_F(CpuLoss, AgreesWithReference) {
  Dice dice(71);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const Shape x{dice.between(1, 9), dice.pick({2, 3, 5, 10, 17, 1000})};
    const StepContext context = dice.context(x[0]);
    NodeSpec spec{.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = graph::LossAttrs{dice.coin() ? 0.1 : 0.0}};
    expect_agrees(spec, context);
    spec.pass = Pass::Evaluate;
    spec.saves_for_backward = false;
    expect_agrees(spec, context);
    spec.pass = Pass::InputGrad;
    expect_agrees_in_place(spec, context, {{0, 0}});
  }
}

TEST_F(CpuLoss, HardCasesAgreeWithReference) {
  const OneNode one = build_as_emitted({.kind = OpKind::SoftmaxCrossEntropy, .x = {4, 7}, .attrs = graph::LossAttrs{}});
  // Equal logits, huge ones, one far behind, and a row without a label.
  const Plain plain{
      {"logits", {1, 1, 1, 1, 1, 1, 1, 1000, -1000, 0, 0, 0, 0, 0, 0, 80, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9}},
      {"labels", {5, 0, 1, -1}}};
  const StepContext context{.rows = 4};
  const Plain expected = run_node(*reference_, one, context, plain);
  expect_close(one, context, expected, run_node(*cpu_, one, context, plain), tolerance_);
  EXPECT_EQ(expected.at("metrics")[graph::kRows], 3);
}

TEST_F(CpuLoss, NaNIsNeverCorrect) {
  const OneNode one = build_as_emitted({.kind = OpKind::SoftmaxCrossEntropy, .x = {1, 3}, .attrs = graph::LossAttrs{}});
  const Plain results = run_node(*cpu_, one, {.rows = 1}, {{"logits", {NAN, NAN, NAN}}, {"labels", {0}}});
  EXPECT_TRUE(std::isnan(results.at("metrics")[graph::kLossSum]));
  EXPECT_EQ(results.at("metrics")[graph::kTop1], 0);
  EXPECT_EQ(results.at("metrics")[graph::kTop5], 0);
  EXPECT_EQ(results.at("metrics")[graph::kRows], 1);
}

}  // namespace
}  // namespace millrace::backend::harness
