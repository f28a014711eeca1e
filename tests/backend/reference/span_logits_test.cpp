#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

Plain run(const NodeSpec& spec, const Plain& plain) {
  return run_node(*make_reference_backend({}), build(spec), {.rows = spec.x[0]}, plain);
}

TEST(ReferenceSpanLogits, GradientMatchesFiniteDifferences) {
  for (const Shape& tokens : {Shape{}, Shape{3, 2, 5}}) {
    expect_gradient_matches({.kind = OpKind::SpanLogits, .x = {3, 5, 2}, .table = tokens}, Pass::InputGrad,
                            {.rows = 3});
  }
}

TEST(ReferenceSpanLogits, EachEndHasARowOverTheTokens) {
  NodeSpec spec{.kind = OpKind::SpanLogits, .x = {2, 3, 2}};
  const std::vector<float> tokens{7, 0, -1, -1, 5, 5};
  const Plain plain{{"x", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, {"tokens", tokens}};
  EXPECT_EQ(run(spec, plain).at("y"), (std::vector<float>{1, 3, -1e4, 2, 4, -1e4, -1e4, 9, 11, -1e4, 10, 12}));
  spec.pass = Pass::InputGrad;
  const Plain back{{"dy", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, {"tokens", tokens}};
  EXPECT_EQ(run(spec, back).at("dx"), (std::vector<float>{1, 4, 2, 5, 0, 0, 0, 0, 8, 11, 9, 12}));
}

TEST(ReferenceSpanLogits, TheFirstPlaneHasTheTokens) {
  const NodeSpec spec{.kind = OpKind::SpanLogits, .x = {2, 2, 1}, .table = {2, 2, 2}};
  const Plain plain{{"x", {1, 2, 3, 4}}, {"tokens", {0, -1, -1, 0, -1, 3, 0, 0}}};
  EXPECT_EQ(run(spec, plain).at("y"), (std::vector<float>{1, -1e4, -1e4, 4}));
}

}  // namespace
}  // namespace millrace::backend::harness
