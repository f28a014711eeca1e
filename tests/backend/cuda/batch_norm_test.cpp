#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using graph::BatchNormAttrs;

class CudaBatchNorm : public CudaKernels {
 protected:
  // Every shape with and without ReLU and residual. Few elements have little variance, and rounding in x is blown up
  // by its inverse.
  template <typename Check>
  void for_each_form(uint64_t seed, Check check) {
    Dice dice(seed);
    for (int i = 0; i < 20; ++i) {
      const Shape x = dice.images(dice.channels(), i % 4 == 0 ? 12 : 1, i % 4 == 0 ? 30 : 9);
      const StepContext context = dice.context(x[0]);
      if (context.rows * x[2] * x[3] < 8) continue;
      for (bool residual : {false, true}) {
        for (bool relu : {false, true}) {
          if (HasFailure()) return;
          SCOPED_TRACE(testing::Message() << "residual " << residual << ", relu " << relu);
          const BatchNormAttrs attrs{.residual = residual, .relu = relu};
          check(NodeSpec{.kind = OpKind::BatchNorm, .x = x, .attrs = attrs}, attrs, context);
        }
      }
    }
  }
};

TEST_F(CudaBatchNorm, ForwardAgreesWithReference) {
  for_each_form(31, [&](const NodeSpec& spec, const BatchNormAttrs& attrs, const StepContext& context) {
    expect_agrees_in_place(spec, context,
                           attrs.residual ? std::vector<graph::InPlace>{{0, 5}} : std::vector<graph::InPlace>{});
  });
}

TEST_F(CudaBatchNorm, ForwardOnceMoreLeavesTheRunningStatistics) {
  expect_agrees({.kind = OpKind::BatchNorm, .x = {3, 13, 5, 4}, .attrs = BatchNormAttrs{}}, {.rows = 2, .again = true});
}

TEST_F(CudaBatchNorm, EvaluateAgreesWithReference) {
  for_each_form(32, [&](NodeSpec spec, const BatchNormAttrs& attrs, const StepContext& context) {
    spec.pass = Pass::Evaluate;
    std::vector<graph::InPlace> may{{0, 0}};
    if (attrs.residual) may.push_back({0, 5});
    expect_agrees_in_place(spec, context, may);
  });
}

TEST_F(CudaBatchNorm, InputGradAgreesWithReference) {
  for_each_form(33, [&](NodeSpec spec, const BatchNormAttrs& attrs, const StepContext& context) {
    spec.pass = Pass::InputGrad;
    const bool dresidual = attrs.residual && attrs.relu;
    std::vector<graph::InPlace> may{{0, 1}};
    if (dresidual) may.push_back({2, 0});
    expect_agrees_in_place(spec, context, may, /*together=*/true);
    spec.in_place = {{0, 0}};
    expect_agrees(spec, context);
    if (!dresidual) return;
    spec.dy2 = true;
    spec.in_place.clear();
    expect_agrees_in_place(spec, context, may, /*together=*/true);
  });
}

TEST_F(CudaBatchNorm, ResidualThatNeedsNoGradientGetsNone) {
  const StepContext context{.rows = 3};
  for (DType dtype : kTypes) {
    NodeSpec spec{.kind = OpKind::BatchNorm,
                  .pass = Pass::InputGrad,
                  .x = {4, 13, 5, 3},
                  .attrs = BatchNormAttrs{.residual = true, .relu = true},
                  .dtype = dtype};
    OneNode one = build_as_emitted(spec), plain_one = build_for_reference(spec);
    for (OneNode* node : {&one, &plain_one}) node->program.nodes[0].writes.pop_back();
    const Plain plain = random_rounded(one, context, 1);
    expect_close_in_norm(one, context, run_node(*reference_, plain_one, context, plain),
                         run_on_dirty_memory(*cuda_, one, context, plain), tolerance_of(dtype));
  }
}

TEST_F(CudaBatchNorm, OutputsMadeOnceMoreAgreeWithReference) {
  for_each_form(34, [&](NodeSpec spec, const BatchNormAttrs& attrs, const StepContext& context) {
    if (attrs.residual) return;  // is kept, not made again
    spec.pass = Pass::InputGrad;
    spec.output_again = true;
    expect_agrees(spec, context);
  });
}

TEST_F(CudaBatchNorm, WeightGradAgreesWithReference) {
  for (int64_t channels : {1, 3, 13, 64}) {
    expect_agrees(
        {.kind = OpKind::BatchNorm, .pass = Pass::WeightGrad, .x = {2, channels, 3, 3}, .attrs = BatchNormAttrs{}},
        {.rows = 2});
  }
}

// Many channels, many pixels, and both.
TEST_F(CudaBatchNorm, TheModelsShapesAgreeWithReference) {
  for (const Shape& x : {Shape{4, 2048, 7, 7}, Shape{4, 64, 56, 56}, Shape{2, 256, 28, 28}}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
      expect_agrees(
          {.kind = OpKind::BatchNorm, .pass = pass, .x = x, .attrs = BatchNormAttrs{.residual = true, .relu = true}},
          {.rows = x[0]});
    }
  }
}

// A mean a thousand times the deviation: sums of squares would lose every digit.
TEST_F(CudaBatchNorm, LargeMeanKeepsTheVariance) {
  const NodeSpec spec{.kind = OpKind::BatchNorm, .x = {4, 16, 8, 8}, .attrs = BatchNormAttrs{}};
  const OneNode one = build_as_emitted(spec);
  const StepContext context{.rows = 4};
  Plain plain = random_plain(one, context, 1);
  for (float& value : plain.at("x")) value += 1000;
  const Plain expected = run_node(*reference_, one, context, plain), actual = run_node(*cuda_, one, context, plain);
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_NEAR(actual.at("saved")[16 + c] / expected.at("saved")[16 + c], 1, 1e-4) << "channel " << c;
  }
}

TEST_F(CudaBatchNorm, SumsHaveTheSameBitsEveryTime) {
  for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
    const OneNode one = build_as_emitted({.kind = OpKind::BatchNorm,
                                          .pass = pass,
                                          .x = {8, 64, 28, 28},
                                          .attrs = BatchNormAttrs{.residual = true, .relu = true},
                                          .dtype = DType::F16});
    const StepContext context{.rows = 7};
    const Plain plain = random_rounded(one, context, 1);
    const Plain first = run_node(*cuda_, one, context, plain);
    for (int times = 0; times < 3; ++times) EXPECT_EQ(run_node(*cuda_, one, context, plain), first);
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
