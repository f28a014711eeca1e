#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

using graph::GeluAttrs;

TEST(ReferenceGelu, InputGradMatchesFiniteDifferences) {
  for (bool tanh : {false, true}) {
    for (const Shape& x : {Shape{3, 7}, Shape{2, 3, 5}, Shape{2, 3, 2, 2}}) {
      expect_gradient_matches({.kind = OpKind::Gelu, .x = x, .attrs = GeluAttrs{tanh}}, Pass::InputGrad,
                              {.rows = x[0]});
    }
  }
}

// Numbers of PyTorch 1.13: torch.nn.functional.gelu in float64 and its gradient.
const std::vector<float> kPlaces{-6, -3, -1, -0.5f, 0, 0.5f, 1, 3, 6};
struct Form {
  bool tanh;
  std::vector<double> y, slope;
};
const Form kForms[] = {{false,
                        {-5.919525869e-09, -4.049694095e-03, -1.586552539e-01, -1.542687694e-01, 0, 3.457312306e-01,
                         8.413447461e-01, 2.995950306, 5.999999994},
                        {-3.546870945e-08, -1.194564720e-02, -8.331547059e-02, 1.325048753e-01, 0.5, 8.674951247e-01,
                         1.083315471, 1.011945647, 1.000000035}},
                       {true,
                        {-8.439648980e-11, -3.637392082e-03, -1.588080094e-01, -1.542859902e-01, 0, 3.457140098e-01,
                         8.411919906e-01, 2.996362608, 6},
                        {-7.709976013e-10, -1.158416663e-02, -8.296408385e-02, 1.326300965e-01, 0.5, 8.673699035e-01,
                         1.082964084, 1.011584167, 1.000000001}}};

TEST(ReferenceGelu, HasTheNumbersOfPyTorch) {
  const auto backend = make_reference_backend({});
  const auto count = static_cast<int64_t>(kPlaces.size());
  for (const Form& form : kForms) {
    NodeSpec spec{.kind = OpKind::Gelu, .x = {1, count}, .attrs = GeluAttrs{form.tanh}};
    const std::vector<float> y = run_node(*backend, build(spec), {.rows = 1}, {{"x", kPlaces}}).at("y");
    spec.pass = Pass::InputGrad;
    const Plain gradient{{"dy", std::vector<float>(kPlaces.size(), 2)}, {"x", kPlaces}};
    const std::vector<float> dx = run_node(*backend, build(spec), {.rows = 1}, gradient).at("dx");
    for (size_t i = 0; i < kPlaces.size(); ++i) {
      EXPECT_NEAR(y[i], form.y[i], 1e-12 + 1e-6 * std::abs(form.y[i])) << "tanh " << form.tanh << ", x " << kPlaces[i];
      EXPECT_NEAR(dx[i], 2 * form.slope[i], 1e-12 + 1e-6 * std::abs(form.slope[i])) << "tanh " << form.tanh;
    }
  }
}

TEST(ReferenceGelu, KeepsNaN) {
  const auto backend = make_reference_backend({});
  for (bool tanh : {false, true}) {
    NodeSpec spec{.kind = OpKind::Gelu, .x = {1, 1}, .attrs = GeluAttrs{tanh}};
    EXPECT_TRUE(std::isnan(run_node(*backend, build(spec), {.rows = 1}, {{"x", {NAN}}}).at("y")[0]));
    spec.pass = Pass::InputGrad;
    EXPECT_TRUE(std::isnan(run_node(*backend, build(spec), {.rows = 1}, {{"dy", {1}}, {"x", {NAN}}}).at("dx")[0]));
  }
}

}  // namespace
}  // namespace millrace::backend::harness
