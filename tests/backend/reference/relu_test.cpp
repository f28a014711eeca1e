#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

TEST(ReferenceRelu, InputGradMatchesFiniteDifferences) {
  expect_gradient_matches({.kind = OpKind::Relu, .x = {3, 5, 2, 3}}, Pass::InputGrad, {.rows = 3});
}

TEST(ReferenceRelu, KeepsNaN) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::Relu, .x = {1, 3}});
  const std::vector<float> y = run_node(*backend, one, {.rows = 1}, {{"x", {-2, NAN, 3}}}).at("y");
  EXPECT_EQ(y[0], 0);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[2], 3);
}

}  // namespace
}  // namespace millrace::backend::harness
