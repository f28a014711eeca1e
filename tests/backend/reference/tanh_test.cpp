#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

TEST(ReferenceTanh, InputGradMatchesFiniteDifferences) {
  for (const Shape& x : {Shape{3, 7}, Shape{2, 3, 5}, Shape{2, 3, 2, 2}}) {
    expect_gradient_matches({.kind = OpKind::Tanh, .x = x}, Pass::InputGrad, {.rows = x[0]});
  }
}

TEST(ReferenceTanh, HasTheNumbersOfPyTorch) {
  const auto backend = make_reference_backend({});
  NodeSpec spec{.kind = OpKind::Tanh, .x = {1, 5}};
  const std::vector<float> y = run_node(*backend, build(spec), {.rows = 1}, {{"x", {-3, -0.5f, 0, 1, 6}}}).at("y");
  const std::vector<double> want{-0.995054754, -0.462117157, 0, 0.761594156, 0.999987712};
  spec.pass = Pass::InputGrad;
  const Plain gradient{{"dy", std::vector<float>(5, 2)}, {"y", y}};
  const std::vector<float> dx = run_node(*backend, build(spec), {.rows = 1}, gradient).at("dx");
  const std::vector<double> slope{9.866037165e-03, 7.864477330e-01, 1, 4.199743416e-01, 2.457654741e-05};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(y[i], want[i], 1e-7);
    EXPECT_NEAR(dx[i], 2 * slope[i], 3e-7);
  }
}

TEST(ReferenceTanh, KeepsNaN) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::Tanh, .x = {1, 1}});
  EXPECT_TRUE(std::isnan(run_node(*backend, one, {.rows = 1}, {{"x", {NAN}}}).at("y")[0]));
}

}  // namespace
}  // namespace millrace::backend::harness
