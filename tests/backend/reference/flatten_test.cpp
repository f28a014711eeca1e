#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

TEST(ReferenceFlatten, InputGradMatchesFiniteDifferences) {
  expect_gradient_matches({.kind = OpKind::Flatten, .x = {2, 3, 2, 5}}, Pass::InputGrad, {.rows = 2});
}

TEST(ReferenceFlatten, KeepsRowMajorOrder) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::Flatten, .x = {2, 2, 1, 2}});
  const std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(run_node(*backend, one, {.rows = 2}, {{"x", x}}).at("y"), x);
}

}  // namespace
}  // namespace millrace::backend::harness
