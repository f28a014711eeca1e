#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

using graph::LayerNormAttrs;

TEST(ReferenceLayerNorm, GradientsMatchFiniteDifferences) {
  for (const Shape& x : {Shape{3, 5}, Shape{1, 8}, Shape{2, 3, 7}, Shape{2, 2, 3, 4}}) {
    for (double epsilon : {1e-5, 0.1}) {
      const NodeSpec spec{.kind = OpKind::LayerNorm, .x = x, .attrs = LayerNormAttrs{epsilon}};
      for (Pass pass : {Pass::InputGrad, Pass::WeightGrad}) expect_gradient_matches(spec, pass, {.rows = x[0]});
    }
  }
}

// Numbers of PyTorch 1.13: torch.nn.functional.layer_norm in float64 and its gradients.
const Plain kSmall{{"x", {1, 2, 3, 4, -1, 0.5f, 2.5f, -3, 10, 10, 10, 11}},
                   {"scale", {1, -2, 0.5f, 3}},
                   {"shift", {0, 1, -1, 0.25f}},
                   {"dy", {1, 0, -1, 2, 0.5f, 0.25f, -2, 1, 1, 2, 3, 4}}};
const Shape kSmallShape{3, 4};

void expect_numbers(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << "element " << i;
}

TEST(ReferenceLayerNorm, HasTheNumbersOfPyTorch) {
  const auto backend = make_reference_backend({});
  const StepContext context{.rows = 3};
  NodeSpec spec{.kind = OpKind::LayerNorm, .x = kSmallShape, .attrs = LayerNormAttrs{}};
  const Plain forward = run_node(*backend, build(spec), context, kSmall);
  expect_numbers(forward.at("y"), {-1.341635420, 1.894423613, -0.776394097, 4.274906260, -0.372103746, 0.255792508,
                                   -0.317809799, -3.843141204, -0.577334874, 2.154669748, -1.288667437, 5.446013864});
  expect_numbers(forward.at("saved"), {2.5, -0.25, 10.25, 1 / std::sqrt(1.25 + 1e-5), 1 / std::sqrt(4.0625 + 1e-5),
                                       1 / std::sqrt(0.1875 + 1e-5)});

  Plain plain = kSmall;
  plain["saved"] = forward.at("saved");
  spec.pass = Pass::InputGrad;
  expect_numbers(run_node(*backend, build(spec), context, plain).at("dx"),
                 {1.386341038, -0.8049864396, -2.549102110, 1.967747512, -0.2690589693, -0.2270793585, 0.2423420624,
                  0.2537962653, 3.463624373, -8.083073103, 4.618294121, 1.154608168e-03});
  spec.pass = Pass::WeightGrad;
  const Plain weights = run_node(*backend, build(spec), context, plain);
  expect_numbers(weights.at("dscale"), {-2.105022167, -1.061643811, -4.907977231, 8.246908924});
  expect_numbers(weights.at("dshift"), {2.5, 2.25, 0, 7});
}

TEST(ReferenceLayerNorm, EvaluateMakesTheSameAndSavesNothing) {
  const auto backend = make_reference_backend({});
  NodeSpec spec{.kind = OpKind::LayerNorm, .x = kSmallShape, .attrs = LayerNormAttrs{}};
  const Plain forward = run_node(*backend, build(spec), {.rows = 3}, kSmall);
  spec.pass = Pass::Evaluate;
  const Plain evaluate = run_node(*backend, build(spec), {.rows = 3}, kSmall);
  EXPECT_EQ(evaluate.size(), 1u);
  EXPECT_EQ(evaluate.at("y"), forward.at("y"));
}

TEST(ReferenceLayerNorm, OneColumnIsItsShift) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::LayerNorm, .x = {2, 1}, .attrs = LayerNormAttrs{}});
  const Plain results = run_node(*backend, one, {.rows = 2}, {{"x", {3, -1000}}, {"scale", {2}}, {"shift", {7}}});
  EXPECT_EQ(results.at("y"), (std::vector<float>{7, 7}));
}

}  // namespace
}  // namespace millrace::backend::harness
