#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

class CudaLoss : public CudaKernels {
 protected:
  static NodeSpec loss(const Shape& x, DType dtype) {
    return {.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = graph::LossAttrs{}, .dtype = dtype};
  }
};

TEST_F(CudaLoss, AgreesWithReference) {
  Dice dice(71);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const Shape x{i % 5 == 0 ? 300 : dice.between(1, 9), dice.pick({2, 3, 5, 10, 17, 1000})};
    const StepContext context = dice.context(x[0]);
    NodeSpec spec{.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = graph::LossAttrs{dice.coin() ? 0.1 : 0.0}};
    expect_agrees(spec, context);
    spec.pass = Pass::Evaluate;
    spec.saves_for_backward = false;
    expect_agrees(spec, context);
    spec.pass = Pass::InputGrad;
    expect_agrees(spec, context);
    spec.in_place = {{0, 0}};
    expect_same_results_in(*reference_, *cuda_, spec, context, 1);
  }
}

TEST_F(CudaLoss, MetricsAreAddedUp) {
  for (DType dtype : kTypes) {
    const OneNode one = build_as_emitted(loss({3, 7}, dtype));
    const StepContext context{.rows = 3};
    const Plain plain = random_rounded(one, context, 1);
    NodeRun run(*cuda_, one);
    run.fill(plain);
    run.run(context);
    const std::vector<float> once = run.results().at("metrics");
    run.run(context);
    const std::vector<float> twice = run.results().at("metrics");
    for (int i = 0; i < graph::kNumMetrics; ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]) << "metric " << i;
  }
}

TEST_F(CudaLoss, HardCasesAgreeWithReference) {
  // Equal logits, huge ones, one far behind, and a row without a label.
  const Plain plain{
      {"logits", {1, 1, 1, 1, 1, 1, 1, 1000, -1000, 0, 0, 0, 0, 0, 0, 80, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9}},
      {"labels", {5, 0, 1, -1}}};
  const StepContext context{.rows = 4};
  for (DType dtype : kTypes) {
    const NodeSpec spec = loss({4, 7}, dtype);
    const Plain expected = run_node(*reference_, build_for_reference(spec), context, plain);
    const OneNode one = build_as_emitted(spec);
    expect_close_in_norm(one, context, expected, run_node(*cuda_, one, context, plain), tolerance_of(dtype));
    EXPECT_EQ(expected.at("metrics")[graph::kRows], 3);
  }
}

TEST_F(CudaLoss, NaNIsNeverCorrect) {
  for (DType dtype : kTypes) {
    const OneNode one = build_as_emitted(loss({1, 3}, dtype));
    const Plain results = run_node(*cuda_, one, {.rows = 1}, {{"logits", {NAN, NAN, NAN}}, {"labels", {0}}});
    EXPECT_TRUE(std::isnan(results.at("metrics")[graph::kLossSum]));
    EXPECT_EQ(results.at("metrics")[graph::kTop1], 0);
    EXPECT_EQ(results.at("metrics")[graph::kTop5], 0);
    EXPECT_EQ(results.at("metrics")[graph::kRows], 1);
  }
}

// There is no way to throw from the device.
TEST_F(CudaLoss, LabelThatIsNoClassMakesTheLossNaN) {
  const OneNode one = build_as_emitted(loss({2, 3}, DType::F32));
  const Plain plain{{"logits", {1, 2, 3, 1, 2, 3}}, {"labels", {2, 3}}};
  const std::vector<float> metrics = run_node(*cuda_, one, {.rows = 2}, plain).at("metrics");
  EXPECT_TRUE(std::isnan(metrics[graph::kLossSum]));
  EXPECT_EQ(metrics[graph::kTop1], 1);
  EXPECT_EQ(metrics[graph::kRows], 2);
}

TEST_F(CudaLoss, GradientCarriesTheLossScale) {
  const StepContext context{.rows = 4, .inverse_samples = 0.25};
  for (DType dtype : kTypes) {
    NodeSpec spec = loss({5, 13}, dtype);
    spec.pass = Pass::InputGrad;
    const OneNode plain_one = build_for_reference(spec);
    spec.loss_scale = true;
    const OneNode one = build_as_emitted(spec);
    const Plain plain = random_rounded(one, context, 1);
    Plain expected = run_node(*reference_, plain_one, context, plain);
    for (float& value : expected.at("dlogits")) value *= kLossScale;
    expect_close_in_norm(one, context, expected, run_on_dirty_memory(*cuda_, one, context, plain), tolerance_of(dtype));
  }
}

// Sums over rows do not depend on which block comes first.
TEST_F(CudaLoss, MetricsHaveTheSameBitsEveryTime) {
  const OneNode one = build_as_emitted(loss({512, 1000}, DType::F16));
  const StepContext context{.rows = 500};
  const Plain plain = random_rounded(one, context, 1);
  const Plain first = run_node(*cuda_, one, context, plain);
  for (int times = 0; times < 5; ++times) EXPECT_EQ(run_node(*cuda_, one, context, plain), first);
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
