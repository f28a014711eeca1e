#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

TEST(ReferenceEmbeddingBag, WeightGradMatchesFiniteDifferences) {
  for (const Shape& table : {Shape{5, 3}, Shape{1, 1}, Shape{11, 7}}) {
    const NodeSpec spec{.kind = OpKind::EmbeddingBag, .x = {4, 6}, .table = table};
    expect_gradient_matches(spec, Pass::WeightGrad, {.rows = 4});
  }
}

TEST(ReferenceEmbeddingBag, TheMeanIsOfTheTokensThereAre) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::EmbeddingBag, .x = {3, 3}, .table = {2, 2}});
  const Plain plain{{"w", {1, 2, 30, 40}}, {"tokens", {0, 1, -1, 1, 1, 0, -1, -1, -1}}};
  const std::vector<float> y = run_node(*backend, one, {.rows = 3}, plain).at("y");
  EXPECT_EQ(y, (std::vector<float>{15.5, 21, 61.0f / 3, 82.0f / 3, 0, 0}));
}

TEST(ReferenceEmbeddingBag, ATokenBeyondTheTableIsRefused) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::EmbeddingBag, .x = {1, 2}, .table = {2, 1}});
  EXPECT_THROW(run_node(*backend, one, {.rows = 1}, {{"w", {1, 2}}, {"tokens", {0, 2}}}), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::backend::harness
