#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

// With and without ReLU and residual, full batches and padded ones.
template <typename Check>
void for_each_form(Check check) {
  for (bool residual : {false, true}) {
    for (bool relu : {false, true}) {
      for (int64_t rows : {3, 4}) {
        SCOPED_TRACE(::testing::Message() << "residual " << residual << ", relu " << relu << ", rows " << rows);
        const graph::BatchNormAttrs attrs{.residual = residual, .relu = relu};
        check(NodeSpec{.kind = OpKind::BatchNorm, .x = {4, 3, 3, 5}, .attrs = attrs}, StepContext{.rows = rows});
      }
    }
  }
}

TEST(ReferenceBatchNorm, InputGradMatchesFiniteDifferences) {
  for_each_form([](const NodeSpec& spec, const StepContext& context) {
    expect_gradient_matches(spec, Pass::InputGrad, context);
  });
}

TEST(ReferenceBatchNorm, WeightGradMatchesFiniteDifferences) {
  for_each_form([](const NodeSpec& spec, const StepContext& context) {
    expect_gradient_matches(spec, Pass::WeightGrad, context);
  });
}

// One channel, 1x2 images; the last row is padding and would move every number below.
const Plain kSmall{{"x", {1, 3, 5, 7, 1000, -1000}}, {"scale", {2}}, {"shift", {1}}, {"mean", {10}}, {"variance", {4}}};
const NodeSpec kSmallForward{.kind = OpKind::BatchNorm, .x = {3, 1, 1, 2}, .attrs = graph::BatchNormAttrs{}};

TEST(ReferenceBatchNorm, StatisticsLeavePaddingRowsOut) {
  const auto backend = make_reference_backend({});
  const Plain results = run_node(*backend, build(kSmallForward), {.rows = 2}, kSmall);
  const double invstd = 1 / std::sqrt(5 + 1e-5);
  EXPECT_FLOAT_EQ(results.at("saved")[0], 4);
  EXPECT_FLOAT_EQ(results.at("saved")[1], static_cast<float>(invstd));
  EXPECT_FLOAT_EQ(results.at("mean")[0], 0.9f * 10 + 0.1f * 4);
  EXPECT_FLOAT_EQ(results.at("variance")[0], 0.9f * 4 + 0.1f * 20 / 3) << "the running variance is unbiased";
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(results.at("y")[i], static_cast<float>(2 * (kSmall.at("x")[i] - 4) * invstd + 1));
  }
  EXPECT_TRUE(std::isfinite(results.at("y")[4]) && std::isfinite(results.at("y")[5]));
}

TEST(ReferenceBatchNorm, OneElementUsesBiasedVariance) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::BatchNorm, .x = {2, 1, 1, 1}, .attrs = graph::BatchNormAttrs{}});
  const Plain plain{{"x", {3, 9}}, {"scale", {2}}, {"shift", {1}}, {"mean", {0}}, {"variance", {1}}};
  const Plain results = run_node(*backend, one, {.rows = 1}, plain);
  EXPECT_FLOAT_EQ(results.at("variance")[0], 0.9f);
  EXPECT_FLOAT_EQ(results.at("y")[0], 1);
}

TEST(ReferenceBatchNorm, AllPaddingLeavesRunningStatisticsAlone) {
  const auto backend = make_reference_backend({});
  const Plain results = run_node(*backend, build(kSmallForward), {.rows = 0}, kSmall);
  EXPECT_EQ(results.at("mean")[0], 10);
  EXPECT_EQ(results.at("variance")[0], 4);
  for (float y : results.at("y")) EXPECT_TRUE(std::isfinite(y));
}

TEST(ReferenceBatchNorm, EvaluateUsesRunningStatistics) {
  const auto backend = make_reference_backend({});
  NodeSpec spec = kSmallForward;
  spec.pass = Pass::Evaluate;
  const Plain results = run_node(*backend, build(spec), {.rows = 3}, kSmall);
  EXPECT_EQ(results.size(), 1u);
  for (int i = 0; i < 6; ++i) {
    const double expected = 2 * (kSmall.at("x")[i] - 10) / std::sqrt(4 + 1e-5) + 1;
    EXPECT_FLOAT_EQ(results.at("y")[i], static_cast<float>(expected));
  }
}

TEST(ReferenceBatchNorm, PaddingRowsGetNoGradient) {
  const auto backend = make_reference_backend({});
  const graph::BatchNormAttrs attrs{.residual = true, .relu = true};
  const OneNode one = build({.kind = OpKind::BatchNorm, .pass = Pass::InputGrad, .x = {4, 3, 3, 5}, .attrs = attrs});
  const StepContext context{.rows = 2};
  const Plain results = run_node(*backend, one, context, random_plain(one, context, 1));
  for (const char* name : {"dx", "dresidual"}) {
    for (size_t i = 2 * 3 * 3 * 5; i < results.at(name).size(); ++i) EXPECT_EQ(results.at(name)[i], 0) << name;
  }
}

}  // namespace
}  // namespace millrace::backend::harness
