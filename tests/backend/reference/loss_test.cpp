#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

// The random labels of the harness hold negative ones, and the last rows are padding.
TEST(ReferenceLoss, InputGradMatchesFiniteDifferences) {
  for (double smoothing : {0.0, 0.1}) {
    const graph::LossAttrs attrs{smoothing};
    for (const Shape& x : {Shape{9, 7}, Shape{9, 3, 4}}) {
      for (int64_t rows : {6, 9}) {
        expect_gradient_matches({.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = attrs}, Pass::InputGrad,
                                {.rows = rows, .inverse_samples = 1.0 / 13});
      }
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

// Three labels of each of three samples, the last of which is padding; one is none.
TEST(ReferenceLoss, ASampleMayHaveSeveralLabels) {
  const std::vector<float> logits{0, 0, 5, 5, 2, 0, 0, 2, 1, 1, 0, 0, 9, 9, 9, 9, 9, 9},
      labels{1, -1, 0, 0, 1, 1, 0, 0, 0};
  const Plain results = loss_of({3, 3, 2}, logits, labels, 2);
  const double even = std::log(2.0), small = std::log1p(std::exp(-2.0));
  const std::vector<float>& metrics = results.at("metrics");
  EXPECT_FLOAT_EQ(metrics[graph::kLossSum], static_cast<float>(3 * even + small + (2 + small)));
  EXPECT_EQ(metrics[graph::kTop1], 1);
  EXPECT_EQ(metrics[graph::kTop5], 5);
  EXPECT_EQ(metrics[graph::kRows], 5);
  const std::vector<float>& saved = results.at("saved");
  const double sure = 1 / (1 + std::exp(-2.0));
  const double expected[] = {0, 0, 2, 2, 1, 0, 0, 0, 0, 0.5, 0, sure, sure, 0.5, 0.5, 0, 0, 0};
  ASSERT_EQ(saved.size(), 18u);
  for (size_t i = 0; i < saved.size(); ++i) EXPECT_FLOAT_EQ(saved[i], static_cast<float>(expected[i])) << i;
}

TEST(ReferenceLoss, AGradientIsWeightedBySamplesAndTheirLabels) {
  NodeSpec spec{
      .kind = OpKind::SoftmaxCrossEntropy, .pass = Pass::InputGrad, .x = {2, 2, 2}, .attrs = graph::LossAttrs{}};
  const Plain plain{
      {"logits", std::vector<float>(8, 0)}, {"labels", {0, -1, 1, 1}}, {"saved", {0, 0, 0, 0, 0.5f, 0, 0.5f, 0.5f}}};
  for (const auto& in_place : {std::vector<graph::InPlace>{}, {{0, 0}}}) {
    spec.in_place = in_place;
    const Plain results =
        run_node(*make_reference_backend({}), build(spec), {.rows = 2, .inverse_samples = 0.5}, plain);
    const float half = 0.5f * 0.5f / 2;
    const std::vector<float> expected{-half, half, 0, 0, half, -half, half, -half};
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(results.at("dlogits")[i], expected[i]) << i;
  }
}

TEST(ReferenceLoss, SmoothingSpreadsTheTarget) {
  const double p0 = 1 / (1 + std::exp(-2.0)), p1 = 1 - p0;
  const Plain results = loss_of({1, 2}, {2, 0}, {0}, 1, 0.2);
  EXPECT_FLOAT_EQ(results.at("metrics")[graph::kLossSum], static_cast<float>(-0.9 * std::log(p0) - 0.1 * std::log(p1)));
  EXPECT_EQ(results.at("saved")[0], 2);
  EXPECT_FLOAT_EQ(results.at("saved")[1], static_cast<float>(p0));
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
  EXPECT_EQ(results.at("saved"), (std::vector<float>{1000, 1}));
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

TEST(ReferenceLoss, ForwardThatIsRunAgainCountsNothing) {
  const OneNode one = build({.kind = OpKind::SoftmaxCrossEntropy, .x = {1, 2}, .attrs = graph::LossAttrs{}});
  const Plain results =
      run_node(*make_reference_backend({}), one, {.rows = 1, .again = true}, {{"logits", {0, 0}}, {"labels", {0}}});
  EXPECT_EQ(results.at("metrics"), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(results.at("saved"), (std::vector<float>{0, 0.5f}));
}

TEST(ReferenceLoss, RefusesLabelOutsideTheClasses) {
  EXPECT_THROW(loss_of({1, 3}, {1, 2, 3}, {3}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::backend::harness
