#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::BatchNormAttrs;

class CpuBatchNorm : public CpuKernels {
 protected:
  // Every shape with and without ReLU and residual.
  template <typename Check>
  void for_each_form(uint64_t seed, Check check) {
    Dice dice(seed);
    for (int i = 0; i < 24; ++i) {
      const Shape x = dice.images(dice.channels(), 1, 9);
      const StepContext context = dice.context(x[0]);
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

TEST_F(CpuBatchNorm, ForwardAgreesWithReference) {
  for_each_form(31, [&](const NodeSpec& spec, const BatchNormAttrs& attrs, const StepContext& context) {
    // One element has no variance: its scale is 1 / sqrt(epsilon), and rounding in x is blown up by that.
    if (context.rows * spec.x[2] * spec.x[3] < 4) return;
    expect_agrees_in_place(spec, context,
                           attrs.residual ? std::vector<graph::InPlace>{{0, 5}} : std::vector<graph::InPlace>{});
  });
}

TEST_F(CpuBatchNorm, EvaluateAgreesWithReference) {
  for_each_form(32, [&](NodeSpec spec, const BatchNormAttrs& attrs, const StepContext& context) {
    spec.pass = Pass::Evaluate;
    std::vector<graph::InPlace> may{{0, 0}};
    if (attrs.residual) may.push_back({0, 5});
    expect_agrees_in_place(spec, context, may);
  });
}

TEST_F(CpuBatchNorm, InputGradAgreesWithReference) {
  for_each_form(33, [&](NodeSpec spec, const BatchNormAttrs& attrs, const StepContext& context) {
    if (context.rows * spec.x[2] * spec.x[3] < 4) return;
    spec.pass = Pass::InputGrad;
    const bool dresidual = attrs.residual && attrs.relu;
    std::vector<graph::InPlace> may{{0, 1}};
    if (dresidual) may.push_back({2, 0});
    expect_agrees_in_place(spec, context, may, /*together=*/true);
    spec.in_place = {{0, 0}};
    expect_agrees(spec, context);
    if (!dresidual) return;
    spec.dy2 = true;
    spec.in_place = {};
    expect_agrees_in_place(spec, context, may, /*together=*/true);
  });
}

TEST_F(CpuBatchNorm, ResidualThatNeedsNoGradientGetsNone) {
  const StepContext context{.rows = 3};
  OneNode one = build_as_emitted({.kind = OpKind::BatchNorm,
                                  .pass = Pass::InputGrad,
                                  .x = {4, 17, 5, 3},
                                  .attrs = BatchNormAttrs{.residual = true, .relu = true}});
  one.program.nodes[0].writes.pop_back();
  const Plain plain = random_plain(one, context, 1);
  expect_close(one, context, run_node(*reference_, one, context, plain),
               run_on_dirty_memory(*cpu_, one, context, plain), tolerance_);
}

TEST_F(CpuBatchNorm, WeightGradAgreesWithReference) {
  for (int64_t channels : {1, 3, 17, 48}) {
    expect_agrees(
        {.kind = OpKind::BatchNorm, .pass = Pass::WeightGrad, .x = {2, channels, 3, 3}, .attrs = BatchNormAttrs{}},
        {.rows = 2});
  }
}

// A mean a thousand times the deviation: sums of squares would lose every digit.
TEST_F(CpuBatchNorm, LargeMeanKeepsTheVariance) {
  const OneNode one = build_as_emitted({.kind = OpKind::BatchNorm, .x = {4, 16, 8, 8}, .attrs = BatchNormAttrs{}});
  const StepContext context{.rows = 4};
  Plain plain = random_plain(one, context, 1);
  for (float& value : plain.at("x")) value += 1000;
  const Plain expected = run_node(*reference_, one, context, plain), actual = run_node(*cpu_, one, context, plain);
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_NEAR(actual.at("saved")[16 + c] / expected.at("saved")[16 + c], 1, 1e-4) << "channel " << c;
  }
}

// Blocks divide evenly over two threads, or not, or are fewer than threads: three ways to share the work.
TEST_F(CpuBatchNorm, ThreadsDoNotChangeTheNumbers) {
  for (int64_t channels : {16, 32, 48, 5, 160}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
      const OneNode one = build_as_emitted({.kind = OpKind::BatchNorm,
                                            .pass = pass,
                                            .x = {5, channels, 7, 9},
                                            .attrs = BatchNormAttrs{.residual = true, .relu = true}});
      const StepContext context{.rows = 4};
      const Plain plain = random_plain(one, context, 1);
      auto run = [&](int threads) {
        const auto cpu = make_cpu_backend({.threads = threads}, {});
        return run_node(*cpu, one, context, plain);
      };
      EXPECT_EQ(run(1), run(2)) << channels << " channels, " << graph::name_of(pass);
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
