#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

const std::vector<NodeSpec> kLayers{
    {.kind = OpKind::Linear, .x = {3, 7}, .attrs = graph::LinearAttrs{5}},
    {.kind = OpKind::Linear, .x = {1, 4}, .attrs = graph::LinearAttrs{9, /*bias=*/false}},
    {.kind = OpKind::Linear, .x = {2, 3, 4}, .attrs = graph::LinearAttrs{5}},
};

TEST(ReferenceLinear, InputGradMatchesFiniteDifferences) {
  for (const NodeSpec& spec : kLayers) expect_gradient_matches(spec, Pass::InputGrad, {.rows = spec.x[0]});
}

TEST(ReferenceLinear, WeightGradMatchesFiniteDifferences) {
  for (const NodeSpec& spec : kLayers) expect_gradient_matches(spec, Pass::WeightGrad, {.rows = spec.x[0]});
}

TEST(ReferenceLinear, ForwardAddsBiasThenRelu) {
  const auto backend = make_reference_backend({});
  const Plain plain{{"x", {1, 2, -3, 4}}, {"w", {1, 10, 2, -1}}, {"b", {0.5, 1}}};
  const OneNode one = build({.kind = OpKind::Linear, .x = {2, 2}, .attrs = graph::LinearAttrs{2}});
  EXPECT_EQ(run_node(*backend, one, {.rows = 2}, plain).at("y"), (std::vector<float>{21.5, 1, 37.5, -9}));
  const OneNode fused = build({.kind = OpKind::Linear, .x = {2, 2}, .attrs = graph::LinearAttrs{2, true, true}});
  EXPECT_EQ(run_node(*backend, fused, {.rows = 2}, plain).at("y"), (std::vector<float>{21.5, 1, 37.5, 0}));
}

TEST(ReferenceLinear, EveryTokenIsARow) {
  const auto backend = make_reference_backend({});
  const Plain plain{{"x", {1, 2, -3, 4}}, {"w", {1, 10, 2, -1}}, {"b", {0.5, 1}}};
  const OneNode one = build({.kind = OpKind::Linear, .x = {1, 2, 2}, .attrs = graph::LinearAttrs{2}});
  EXPECT_EQ(run_node(*backend, one, {.rows = 1}, plain).at("y"), (std::vector<float>{21.5, 1, 37.5, -9}));
}

}  // namespace
}  // namespace millrace::backend::harness
