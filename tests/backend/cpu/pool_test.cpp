#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::AdaptivePoolAttrs;
using graph::PoolAttrs;
using graph::Window;

class CpuPool : public CpuKernels {
 protected:
  // Random windows over random images, padding at most half the kernel.
  void expect_windows_agree(OpKind kind, uint64_t seed) {
    Dice dice(seed);
    for (int i = 0; i < 40; ++i) {
      if (HasFailure()) return;
      const Shape x = dice.images(dice.channels(), 3, 13);
      Window w{dice.small(1, 4), dice.small(1, 4), dice.small(1, 3), dice.small(1, 3)};
      w.pad_h = dice.small(0, w.kernel_h / 2), w.pad_w = dice.small(0, w.kernel_w / 2);
      w.dilation_h = dice.small(1, 2), w.dilation_w = dice.small(1, 2);
      const StepContext context = dice.context(x[0]);
      const PoolAttrs attrs{w, dice.coin()};
      if (w.out_h(x[2]) < 1 || w.out_w(x[3]) < 1) continue;
      SCOPED_TRACE(testing::Message() << "kernel " << w.kernel_h << "x" << w.kernel_w << ", stride " << w.stride_h
                                      << "x" << w.stride_w << ", pad " << w.pad_h << "x" << w.pad_w << ", dilation "
                                      << w.dilation_h << "x" << w.dilation_w);
      NodeSpec spec{.kind = kind, .x = x, .attrs = attrs};
      expect_agrees(spec, context);
      spec.pass = Pass::InputGrad;
      expect_agrees(spec, context);
      spec.pass = Pass::Evaluate;
      spec.saves_for_backward = false;
      expect_agrees(spec, context);
    }
  }
};

TEST_F(CpuPool, MaxAgreesWithReference) { expect_windows_agree(OpKind::MaxPool, 41); }
TEST_F(CpuPool, AverageAgreesWithReference) { expect_windows_agree(OpKind::AvgPool, 42); }

TEST_F(CpuPool, AdaptiveAgreesWithReference) {
  Dice dice(43);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const Shape x = dice.images(dice.channels(), 1, 13);
    NodeSpec spec{
        .kind = OpKind::AdaptiveAvgPool, .x = x, .attrs = AdaptivePoolAttrs{dice.small(1, 7), dice.small(1, 7)}};
    const StepContext context = dice.context(x[0]);
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
  NodeSpec global{.kind = OpKind::AdaptiveAvgPool, .x = {3, 48, 7, 7}, .attrs = AdaptivePoolAttrs{1, 1}};
  expect_agrees(global, {.rows = 3});
  global.pass = Pass::InputGrad;
  expect_agrees(global, {.rows = 3});
}

TEST_F(CpuPool, TheModelsWindowsAgreeWithReference) {
  for (const Window& w : {Window::square(2, 2), Window::square(3, 2), Window::square(3, 2, 1)}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
      expect_agrees({.kind = OpKind::MaxPool, .pass = pass, .x = {2, 64, 14, 15}, .attrs = PoolAttrs{w}}, {.rows = 2});
    }
  }
}

class CpuMaxPool : public CpuPool {
 protected:
  void expect_same(const Shape& x, const Window& window, std::vector<float> values) {
    const OneNode one = build_as_emitted({.kind = OpKind::MaxPool, .x = x, .attrs = PoolAttrs{window}});
    const Plain plain{{"x", std::move(values)}};
    const Plain expected = run_node(*reference_, one, {.rows = x[0]}, plain);
    const Plain actual = run_node(*cpu_, one, {.rows = x[0]}, plain);
    EXPECT_EQ(actual.at("argmax"), expected.at("argmax"));
    for (size_t i = 0; i < expected.at("y").size(); ++i) {
      const float want = expected.at("y")[i], got = actual.at("y")[i];
      EXPECT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << i << ": " << want << " " << got;
    }
  }
};

TEST_F(CpuMaxPool, TiesTakeTheFirstCell) {
  expect_same({1, 1, 4, 4}, Window::square(2, 2), std::vector<float>(16, 3));
  expect_same({1, 1, 2, 4}, Window::square(2, 2), {1, 4, 5, 5, 4, 4, 5, 5});
  expect_same({1, 1, 4, 4}, Window::square(3, 2, 1), std::vector<float>(16, -3));
}

TEST_F(CpuMaxPool, FirstNaNWins) {
  expect_same({1, 1, 2, 2}, Window::square(2), {9, NAN, NAN, 10});
  expect_same({1, 1, 2, 2}, Window::square(2), {9, 11, NAN, 10});
}

TEST_F(CpuMaxPool, NothingButMinusInfinityStillHasAWinner) {
  expect_same({1, 1, 2, 2}, Window::square(3, 2, 1), std::vector<float>(4, -INFINITY));
}

}  // namespace
}  // namespace millrace::backend::harness
