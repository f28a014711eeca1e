#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using CpuLoss = CpuKernels;

TEST_F(CpuLoss, AgreesWithReference) {
  Dice dice(71);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const int64_t batch = dice.between(1, 9), classes = dice.pick({2, 3, 5, 10, 17, 1000});
    const Shape x = i % 3 == 0 ? Shape{batch, dice.between(1, 5), classes} : Shape{batch, classes};
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

// As wide as a vocabulary, with logits of any size.
TEST_F(CpuLoss, WideRowsAgreeWithReference) {
  for (float size : {1.0f, 20.0f, 1e4f}) {
    for (double smoothing : {0.0, 0.1}) {
      NodeSpec spec{.kind = OpKind::SoftmaxCrossEntropy, .x = {2, 2, 50257}, .attrs = graph::LossAttrs{smoothing}};
      const StepContext context{.rows = 2, .inverse_samples = 0.5};
      const OneNode one = build_as_emitted(spec);
      Plain plain = random_plain(one, context, ++seed_);
      for (float& logit : plain.at("logits")) logit *= size;
      const Plain expected = run_node(*reference_, one, context, plain);
      expect_close(one, context, expected, run_on_dirty_memory(*cpu_, one, context, plain), tolerance_);
      plain["saved"] = expected.at("saved");
      spec.pass = Pass::InputGrad;
      for (const auto& in_place : {std::vector<graph::InPlace>{}, {{0, 0}}}) {
        spec.in_place = in_place;
        const OneNode back = build_as_emitted(spec);
        expect_close(back, context, run_node(*reference_, back, context, plain),
                     run_on_dirty_memory(*cpu_, back, context, plain), tolerance_);
      }
    }
  }
}

// Of logits that are all large, differences count.
TEST_F(CpuLoss, ACommonSummandMakesNoDifference) {
  const OneNode one =
      build_as_emitted({.kind = OpKind::SoftmaxCrossEntropy, .x = {3, 100}, .attrs = graph::LossAttrs{0.1}});
  Plain plain = random_plain(one, {.rows = 3}, 1);
  for (float& logit : plain.at("logits")) logit = std::round(logit * 1024) / 1024;
  const std::vector<float> expected = run_node(*cpu_, one, {.rows = 3}, plain).at("metrics");
  for (float& logit : plain.at("logits")) logit += 8192;  // and still has all its digits
  const std::vector<float> metrics = run_node(*cpu_, one, {.rows = 3}, plain).at("metrics");
  EXPECT_NEAR(metrics[graph::kLossSum], expected[graph::kLossSum], 1e-5);
  EXPECT_EQ(metrics[graph::kTop5], expected[graph::kTop5]);
}

TEST_F(CpuLoss, OfEqualLogitsTheSmallerIndexComesFirst) {
  const OneNode one =
      build_as_emitted({.kind = OpKind::SoftmaxCrossEntropy, .x = {1, 40}, .attrs = graph::LossAttrs{}});
  for (int label : {0, 1, 4, 5, 16, 39}) {
    const Plain plain{{"logits", std::vector<float>(40, 1.0f)}, {"labels", {static_cast<float>(label)}}};
    const std::vector<float> metrics = run_node(*cpu_, one, {.rows = 1}, plain).at("metrics");
    EXPECT_EQ(metrics[graph::kTop1], label < 1) << label;
    EXPECT_EQ(metrics[graph::kTop5], label < 5) << label;
  }
}

TEST_F(CpuLoss, ForwardThatIsRunAgainCountsNothing) {
  const OneNode one = build_as_emitted({.kind = OpKind::SoftmaxCrossEntropy, .x = {1, 2}, .attrs = graph::LossAttrs{}});
  const Plain plain{{"logits", {0, 0}}, {"labels", {0}}};
  const Plain results = run_node(*cpu_, one, {.rows = 1, .again = true}, plain);
  EXPECT_EQ(results.at("metrics"), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(results.at("saved"), (std::vector<float>{0, 0.5f}));
}

TEST_F(CpuLoss, RefusesLabelOutsideTheClasses) {
  NodeSpec spec{.kind = OpKind::SoftmaxCrossEntropy, .x = {2, 3}, .attrs = graph::LossAttrs{}, .name = "head"};
  const Plain plain{{"logits", {1, 2, 3, 1, 2, 3}}, {"labels", {0, 3}}, {"saved", {0, 0, 1, 1}}};
  for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
    spec.pass = pass;
    const OneNode one = build_as_emitted(spec);
    EXPECT_NO_THROW(run_node(*cpu_, one, {.rows = 1}, plain));
    EXPECT_THROW(run_node(*cpu_, one, {.rows = 2}, plain), std::invalid_argument);
  }
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
