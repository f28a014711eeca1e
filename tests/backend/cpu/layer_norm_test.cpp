#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::LayerNormAttrs;

class CpuLayerNorm : public CpuKernels {
 protected:
  // Of three columns and fewer all or nearly all of dx cancels: rounding is what is left of it.
  template <typename Check>
  void for_each_shape(int64_t narrowest, Check check) {
    Dice dice(61);
    for (int64_t width : {1, 4, 17, 64, 100, 768, 1023}) {
      for (const Shape& x : {Shape{1, width}, Shape{dice.between(2, 90), width},
                             Shape{dice.between(1, 5), dice.between(1, 40), width}}) {
        if (width < narrowest) continue;
        check(NodeSpec{.kind = OpKind::LayerNorm, .x = x, .attrs = LayerNormAttrs{dice.coin() ? 1e-5 : 1e-12}},
              dice.context(x[0]));
      }
    }
  }
};

TEST_F(CpuLayerNorm, ForwardAgreesWithReference) {
  for_each_shape(1, [&](NodeSpec spec, const StepContext& context) {
    expect_agrees_in_place(spec, context, {{0, 0}});
    spec.pass = Pass::Evaluate;
    expect_agrees_in_place(spec, context, {{0, 0}});
  });
}

TEST_F(CpuLayerNorm, InputGradAgreesWithReference) {
  for_each_shape(4, [&](NodeSpec spec, const StepContext& context) {
    spec.pass = Pass::InputGrad;
    expect_agrees_in_place(spec, context, {{0, 0}, {0, 1}});
  });
}

TEST_F(CpuLayerNorm, WeightGradAgreesWithReference) {
  for_each_shape(1, [&](NodeSpec spec, const StepContext& context) {
    spec.pass = Pass::WeightGrad;
    expect_agrees(spec, context);
  });
  expect_agrees({.kind = OpKind::LayerNorm, .pass = Pass::WeightGrad, .x = {7, 700, 65}, .attrs = LayerNormAttrs{}},
                {.rows = 7});
}

TEST_F(CpuLayerNorm, OneColumnHasNoGradient) {
  const OneNode one =
      build_as_emitted({.kind = OpKind::LayerNorm, .pass = Pass::InputGrad, .x = {9, 1}, .attrs = LayerNormAttrs{}});
  const StepContext context{.rows = 9};
  const Plain results = run_node(*cpu_, one, context, random_plain(one, context, 1));
  for (float dx : results.at("dx")) EXPECT_NEAR(dx, 0, 1e-4);
}

// A mean a thousand times the deviation: sums of squares would lose every digit, and so would a mean in one float.
TEST_F(CpuLayerNorm, LargeMeanKeepsTheVariance) {
  const OneNode one = build_as_emitted({.kind = OpKind::LayerNorm, .x = {4, 3, 768}, .attrs = LayerNormAttrs{}});
  const StepContext context{.rows = 4};
  Plain plain = random_plain(one, context, 1);
  for (float& value : plain.at("x")) value += 1000;
  expect_close(one, context, run_node(*reference_, one, context, plain), run_node(*cpu_, one, context, plain), 1e-5);
}

// One column far from all others, as transformers have them.
TEST_F(CpuLayerNorm, OutlierKeepsTheVariance) {
  const OneNode one = build_as_emitted({.kind = OpKind::LayerNorm, .x = {5, 768}, .attrs = LayerNormAttrs{}});
  const StepContext context{.rows = 5};
  Plain plain = random_plain(one, context, 1);
  for (size_t row = 0; row < 5; ++row) plain.at("x")[row * 768] = 3000;
  expect_close(one, context, run_node(*reference_, one, context, plain), run_node(*cpu_, one, context, plain), 1e-5);
}

TEST_F(CpuLayerNorm, ThreadsDoNotChangeTheNumbers) {
  for (const Shape& x : {Shape{1, 17}, Shape{33, 768}, Shape{3, 700, 65}}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
      const OneNode one =
          build_as_emitted({.kind = OpKind::LayerNorm, .pass = pass, .x = x, .attrs = LayerNormAttrs{}});
      const StepContext context{.rows = x[0]};
      const Plain plain = random_plain(one, context, 1);
      auto run = [&](int threads) {
        const auto cpu = make_cpu_backend({.threads = threads}, {});
        return run_node(*cpu, one, context, plain);
      };
      const Plain alone = run(1);
      EXPECT_EQ(alone, run(2)) << x.str() << ", " << graph::name_of(pass);
      EXPECT_EQ(alone, run(3)) << x.str() << ", " << graph::name_of(pass);
    }
  }
}

TEST_F(CpuLayerNorm, RefusesImages) {
  const OneNode one = build_as_emitted({.kind = OpKind::LayerNorm, .x = {2, 3, 4, 5}, .attrs = LayerNormAttrs{}});
  EXPECT_THROW(cpu_->prepare(one.view()), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::backend::harness
