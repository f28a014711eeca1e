#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

std::vector<NodeSpec> convolutions() {
  using graph::Conv2dAttrs;
  using graph::Window;
  return {
      {.kind = OpKind::Conv2d, .x = {2, 3, 5, 7}, .attrs = Conv2dAttrs{4, Window::square(3, 1, 1)}},
      {.kind = OpKind::Conv2d, .x = {1, 4, 7, 5}, .attrs = Conv2dAttrs{6, Window::square(3, 2, 1), /*groups=*/2}},
      {.kind = OpKind::Conv2d, .x = {2, 3, 6, 5}, .attrs = Conv2dAttrs{3, Window::square(2), /*groups=*/3, false}},
      {.kind = OpKind::Conv2d, .x = {1, 2, 9, 8}, .attrs = Conv2dAttrs{2, {3, 2, 2, 3, 2, 1, 2, 3}, 1, true}},
      {.kind = OpKind::Conv2d, .x = {3, 5, 3, 3}, .attrs = Conv2dAttrs{2, Window::square(1, 2), 1, false}},
  };
}

StepContext all_rows(const NodeSpec& spec) { return {.rows = spec.x[0]}; }

TEST(ReferenceConv, InputGradMatchesFiniteDifferences) {
  for (const NodeSpec& spec : convolutions()) expect_gradient_matches(spec, Pass::InputGrad, all_rows(spec));
}

TEST(ReferenceConv, WeightGradMatchesFiniteDifferences) {
  for (const NodeSpec& spec : convolutions()) expect_gradient_matches(spec, Pass::WeightGrad, all_rows(spec));
}

TEST(ReferenceConv, ForwardMatchesSumsByHand) {
  const auto backend = make_reference_backend({});
  // Two groups of one channel, 2x2 kernels, stride 2, padding 1: each corner of the image alone under its window.
  const OneNode one = build({.kind = OpKind::Conv2d,
                             .x = {1, 2, 2, 2},
                             .attrs = graph::Conv2dAttrs{2, graph::Window::square(2, 2, 1), /*groups=*/2}});
  const Plain plain{{"x", {1, 2, 3, 4, 5, 6, 7, 8}}, {"w", {1, 10, 100, 1000, 2, 20, 200, 2000}}, {"b", {0.5, -0.5}}};
  const std::vector<float> y{1000.5, 200.5, 30.5, 4.5, 9999.5, 1199.5, 139.5, 15.5};
  EXPECT_EQ(run_node(*backend, one, {.rows = 1}, plain).at("y"), y);
}

TEST(ReferenceConv, FusedReluStoresNoNegative) {
  const auto backend = make_reference_backend({});
  graph::Conv2dAttrs attrs{4, graph::Window::square(3, 1, 1)};
  const NodeSpec plain_spec{.kind = OpKind::Conv2d, .x = {2, 3, 5, 5}, .attrs = attrs};
  attrs.relu = true;
  const NodeSpec fused_spec{.kind = OpKind::Conv2d, .x = {2, 3, 5, 5}, .attrs = attrs};
  const OneNode plain_conv = build(plain_spec), fused_conv = build(fused_spec);
  const Plain inputs = random_plain(plain_conv, {.rows = 2}, 1);
  std::vector<float> expected = run_node(*backend, plain_conv, {.rows = 2}, inputs).at("y");
  for (float& value : expected) value = std::max(value, 0.0f);
  EXPECT_EQ(run_node(*backend, fused_conv, {.rows = 2}, inputs).at("y"), expected);
}

}  // namespace
}  // namespace millrace::backend::harness
