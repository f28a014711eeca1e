// GELU in both its forms, and tanh.
#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using graph::GeluAttrs;

class CudaActivation : public CudaKernels {
 protected:
  static std::vector<NodeSpec> forms() {
    return {{.kind = OpKind::Gelu, .attrs = GeluAttrs{.tanh = false}},
            {.kind = OpKind::Gelu, .attrs = GeluAttrs{.tanh = true}},
            {.kind = OpKind::Tanh}};
  }
};

TEST_F(CudaActivation, AgreesWithReference) {
  Dice dice(62);
  for (int64_t width : {1, 17, 64, 768, 1023}) {
    for (const Shape& x : {Shape{1, width}, Shape{dice.between(1, 5), width},
                           Shape{dice.between(1, 5), dice.between(1, 9), width}, dice.images(dice.channels(), 1, 9)}) {
      const StepContext context = dice.context(x[0]);
      for (NodeSpec spec : forms()) {
        spec.x = x;
        for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
          spec.pass = pass;
          expect_agrees_in_place(spec, context, {{0, 0}});
        }
      }
    }
  }
}

// From where the functions are flat to where they are steep, by thousandths.
TEST_F(CudaActivation, IsWithinAMillionthEverywhere) {
  constexpr int64_t kCount = 40001;
  std::vector<float> x(kCount);
  for (int64_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(i - kCount / 2) / 1000;
  const StepContext context{.rows = 1};
  for (NodeSpec spec : forms()) {
    spec.x = {1, kCount};
    const OneNode forward = build_as_emitted(spec);
    const Plain values{{"x", x}};
    const Plain want = run_node(*reference_, forward, context, values),
                got = run_node(*cuda_, forward, context, values);
    spec.pass = Pass::InputGrad;
    const OneNode backward = build_as_emitted(spec);
    const bool reads_y = spec.kind == OpKind::Tanh;
    const Plain gradients{{"dy", std::vector<float>(kCount, 1)}, {reads_y ? "y" : "x", reads_y ? want.at("y") : x}};
    const Plain want_slope = run_node(*reference_, backward, context, gradients);
    const Plain got_slope = run_node(*cuda_, backward, context, gradients);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(got.at("y")[i], want.at("y")[i], 1e-6 * std::max(1.0f, std::abs(x[i]))) << "x " << x[i];
      ASSERT_NEAR(got_slope.at("dx")[i], want_slope.at("dx")[i], 1e-6) << "x " << x[i];
    }
  }
}

TEST_F(CudaActivation, HugeNumbersStayFiniteAndNaNStays) {
  const std::vector<float> x{1e30f, -1e30f, 3e38f, -3e38f, 0, NAN};
  const StepContext context{.rows = 1};
  for (NodeSpec spec : forms()) {
    spec.x = {1, 6};
    const bool is_tanh = spec.kind == OpKind::Tanh;
    const std::vector<float> y = run_node(*cuda_, build_as_emitted(spec), context, {{"x", x}}).at("y");
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(y[i], is_tanh ? (x[i] > 0) - (x[i] < 0) : std::max(x[i], 0.0f), 1e-6) << x[i];
    }
    EXPECT_TRUE(std::isnan(y[5]));
    spec.pass = Pass::InputGrad;
    const Plain plain{{"dy", std::vector<float>(6, 1)}, {is_tanh ? "y" : "x", is_tanh ? y : x}};
    const std::vector<float> dx = run_node(*cuda_, build_as_emitted(spec), context, plain).at("dx");
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(dx[i], is_tanh || x[i] < 0 ? 0 : 1, 1e-6) << x[i];
    EXPECT_NEAR(dx[4], is_tanh ? 1 : 0.5f, 1e-6);
    EXPECT_TRUE(std::isnan(dx[5]));
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
