#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

using graph::AdaptivePoolAttrs;
using graph::PoolAttrs;
using graph::Window;

const std::vector<PoolAttrs> kWindows{
    {Window::square(2, 2)},
    {Window::square(3, 2, 1), /*count_pad=*/false},
    {Window::square(3, 1, 1), /*count_pad=*/true},
    {{2, 3, 1, 2, 1, 1, 1, 1}, /*count_pad=*/false},
};

TEST(ReferenceMaxPool, InputGradMatchesFiniteDifferences) {
  for (const PoolAttrs& attrs : kWindows) {
    expect_gradient_matches({.kind = OpKind::MaxPool, .x = {2, 3, 7, 5}, .attrs = attrs}, Pass::InputGrad, {.rows = 2});
  }
  const PoolAttrs dilated{Window::square(2, 2, 1, 3)};
  expect_gradient_matches({.kind = OpKind::MaxPool, .x = {2, 1, 7, 8}, .attrs = dilated}, Pass::InputGrad, {.rows = 2});
}

TEST(ReferenceAvgPool, InputGradMatchesFiniteDifferences) {
  for (const PoolAttrs& attrs : kWindows) {
    expect_gradient_matches({.kind = OpKind::AvgPool, .x = {2, 3, 7, 5}, .attrs = attrs}, Pass::InputGrad, {.rows = 2});
  }
}

TEST(ReferenceAdaptiveAvgPool, InputGradMatchesFiniteDifferences) {
  for (const AdaptivePoolAttrs& attrs : {AdaptivePoolAttrs{1, 1}, {3, 2}, {5, 4}, {7, 8}}) {
    const NodeSpec spec{.kind = OpKind::AdaptiveAvgPool, .x = {2, 3, 7, 5}, .attrs = attrs};
    expect_gradient_matches(spec, Pass::InputGrad, {.rows = 2});
  }
}

Plain max_pool(const Shape& x, const Window& window, std::vector<float> values) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::MaxPool, .x = x, .attrs = PoolAttrs{window}});
  return run_node(*backend, one, {.rows = x[0]}, {{"x", std::move(values)}});
}

TEST(ReferenceMaxPool, TiesTakeTheFirstCell) {
  const Plain results = max_pool({1, 1, 2, 4}, Window::square(2, 2), {1, 4, 5, 5, 4, 4, 5, 5});
  EXPECT_EQ(results.at("y"), (std::vector<float>{4, 5}));
  EXPECT_EQ(results.at("argmax"), (std::vector<float>{1, 0}));
}

TEST(ReferenceMaxPool, PaddingNeverWins) {
  const Plain results = max_pool({1, 1, 2, 2}, Window::square(3, 2, 1), {-1, -2, -3, -INFINITY});
  EXPECT_EQ(results.at("y"), (std::vector<float>{-1}));
  EXPECT_EQ(results.at("argmax"), (std::vector<float>{4}));
  const Plain infinite = max_pool({1, 1, 1, 1}, Window::square(3, 1, 1), {-INFINITY});
  EXPECT_EQ(infinite.at("argmax"), (std::vector<float>{4}));
}

TEST(ReferenceMaxPool, FirstNaNWins) {
  const Plain results = max_pool({1, 1, 2, 2}, Window::square(2), {9, NAN, NAN, 10});
  EXPECT_TRUE(std::isnan(results.at("y")[0]));
  EXPECT_EQ(results.at("argmax"), (std::vector<float>{1}));
}

TEST(ReferenceMaxPool, WritesNoArgmaxUnlessAsked) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::MaxPool,
                             .pass = Pass::Evaluate,
                             .x = {1, 1, 2, 2},
                             .attrs = PoolAttrs{Window::square(2)},
                             .saves_for_backward = false});
  EXPECT_EQ(run_node(*backend, one, {.rows = 1}, {{"x", {1, 2, 4, 3}}}), (Plain{{"y", {4}}}));
}

TEST(ReferenceAvgPool, PaddingCountsInTheDivisorOnlyIfAsked) {
  const auto backend = make_reference_backend({});
  const Plain plain{{"x", {1, 2, 3, 4}}};
  NodeSpec spec{.kind = OpKind::AvgPool, .x = {1, 1, 2, 2}, .attrs = PoolAttrs{Window::square(2, 1, 1), true}};
  EXPECT_EQ(run_node(*backend, build(spec), {.rows = 1}, plain).at("y"),
            (std::vector<float>{0.25, 0.75, 0.5, 1, 2.5, 1.5, 0.75, 1.75, 1}));
  spec.attrs = PoolAttrs{Window::square(2, 1, 1), false};
  EXPECT_EQ(run_node(*backend, build(spec), {.rows = 1}, plain).at("y"),
            (std::vector<float>{1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4}));
}

TEST(ReferenceAdaptiveAvgPool, NeighboursShareCellsWhereExtentsDoNotDivide) {
  const auto backend = make_reference_backend({});
  // 5 over 3: cells [0, 2), [1, 4), [3, 5).
  const OneNode one = build({.kind = OpKind::AdaptiveAvgPool, .x = {1, 1, 1, 5}, .attrs = AdaptivePoolAttrs{1, 3}});
  EXPECT_EQ(run_node(*backend, one, {.rows = 1}, {{"x", {1, 2, 3, 7, 9}}}).at("y"), (std::vector<float>{1.5, 4, 8}));
  // 2 over 3: outputs outnumber inputs.
  const OneNode wider = build({.kind = OpKind::AdaptiveAvgPool, .x = {1, 1, 1, 2}, .attrs = AdaptivePoolAttrs{1, 3}});
  EXPECT_EQ(run_node(*backend, wider, {.rows = 1}, {{"x", {1, 2}}}).at("y"), (std::vector<float>{1, 1.5, 2}));
}

}  // namespace
}  // namespace millrace::backend::harness
