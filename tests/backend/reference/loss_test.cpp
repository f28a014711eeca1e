#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

// The random labels of the harness hold negative ones, and the last rows are padding.
TEST(ReferenceLoss, InputGradMatchesFiniteDifferences) {
  for (double smoothing : {0.0, 0.1}) {
    const graph::LossAttrs attrs{smoothing};
    for (int64_t rows : {6, 9}) {
      expect_gradient_matches({.kind = OpKind::SoftmaxCrossEntropy, .x = {9, 7}, .attrs = attrs}, Pass::InputGrad,
                              {.rows = rows, .inverse_samples = 1.0 / 13});
    }
  }
}

Plain loss_of(const Shape& x, std::vector<float> logits, std::vector<float> labels, int64_t rows,
              double smoothing = 0) {
  const auto backend = make_reference_backend({});
  const OneNode one =
      build({.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = graph::LossAttrs{smoothing}, .dtype = DType::F64});
  const Plain plain{{"logits", std::move(logits)}, {"labels", std::move(labels)}};
  return run_node(*backend, one, {.rows = rows}, plain);
}

TEST(ReferenceLoss, CountsOnlySamples) {
  // Row 1 has no label, row 3 is padding.
  const Plain results = loss_of({4, 2}, {0, 0, 5, 5, 2, 0, 9, 9}, {1, -1, 0, 0}, 3);
  const std::vector<float>& metrics = results.at("metrics");
  EXPECT_FLOAT_EQ(metrics[graph::kLossSum], static_cast<float>(std::log(2.0) + std::log1p(std::exp(-2.0))));
  EXPECT_EQ(metrics[graph::kTop1], 1);
  EXPECT_EQ(metrics[graph::kTop5], 2);
  EXPECT_EQ(metrics[graph::kRows], 2);
}

TEST(ReferenceLoss, SmoothingSpreadsTheTarget) {
  const double p0 = 1 / (1 + std::exp(-2.0)), p1 = 1 - p0;
  const Plain results = loss_of({1, 2}, {2, 0}, {0}, 1, 0.2);
  EXPECT_FLOAT_EQ(results.at("metrics")[graph::kLossSum], static_cast<float>(-0.9 * std::log(p0) - 0.1 * std::log(p1)));
  EXPECT_FLOAT_EQ(results.at("probabilities")[0], static_cast<float>(p0));
  EXPECT_FLOAT_EQ(results.at("probabilities")[1], static_cast<float>(p1));
}

TEST(ReferenceLoss, OfEqualLogitsTheSmallerIndexComesFirst) {
  const std::vector<float> equal(7, 1.0f);
  const std::vector<float> top1{1, 0, 0, 0, 0, 0, 0}, top5{1, 1, 1, 1, 1, 0, 0};
  for (int label = 0; label < 7; ++label) {
    const std::vector<float> metrics = loss_of({1, 7}, equal, {static_cast<float>(label)}, 1).at("metrics");
    EXPECT_EQ(metrics[graph::kTop1], top1[label]) << label;
    EXPECT_EQ(metrics[graph::kTop5], top5[label]) << label;
  }
}

TEST(ReferenceLoss, NaNIsNeverCorrect) {
  const std::vector<float> metrics = loss_of({1, 3}, {NAN, NAN, NAN}, {0}, 1).at("metrics");
  EXPECT_TRUE(std::isnan(metrics[graph::kLossSum]));
  EXPECT_EQ(metrics[graph::kTop1], 0);
  EXPECT_EQ(metrics[graph::kTop5], 0);
  EXPECT_EQ(metrics[graph::kRows], 1);
}

TEST(ReferenceLoss, LargeLogitsStayFinite) {
  const Plain results = loss_of({1, 3}, {1000, -1000, 0}, {0}, 1);
  EXPECT_EQ(results.at("metrics")[graph::kLossSum], 0);
  EXPECT_EQ(results.at("probabilities"), (std::vector<float>{1, 0, 0}));
  EXPECT_FLOAT_EQ(loss_of({1, 3}, {1000, -1000, 0}, {2}, 1).at("metrics")[graph::kLossSum], 1000);
}

TEST(ReferenceLoss, MetricsAreAddedTo) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::SoftmaxCrossEntropy,
                             .pass = Pass::Evaluate,
                             .x = {1, 2},
                             .attrs = graph::LossAttrs{},
                             .saves_for_backward = false});
  NodeRun run(*backend, one);
  run.fill({{"logits", {1, 0}}, {"labels", {0}}});
  run.run({.rows = 1});
  const float once = run.results().at("metrics")[graph::kLossSum];
  run.run({.rows = 1});
  EXPECT_FLOAT_EQ(run.results().at("metrics")[graph::kLossSum], 2 * once);
  EXPECT_EQ(run.results().at("metrics")[graph::kRows], 2);
}

TEST(ReferenceLoss, RefusesLabelOutsideTheClasses) {
  EXPECT_THROW(loss_of({1, 3}, {1, 2, 3}, {3}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::backend::harness
