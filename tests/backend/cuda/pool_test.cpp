#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using graph::AdaptivePoolAttrs;
using graph::PoolAttrs;
using graph::Window;

class CudaPool : public CudaKernels {
 protected:
  void expect_all_passes_agree(NodeSpec spec, const StepContext& context) {
    const auto& w = std::get<PoolAttrs>(spec.attrs).window;
    SCOPED_TRACE(testing::Message() << "kernel " << w.kernel_h << "x" << w.kernel_w << ", stride " << w.stride_h << "x"
                                    << w.stride_w << ", pad " << w.pad_h << "x" << w.pad_w << ", dilation "
                                    << w.dilation_h << "x" << w.dilation_w);
    expect_agrees(spec, context);
    spec.pass = Pass::InputGrad;
    expect_agrees(spec, context);
    spec.pass = Pass::Evaluate;
    spec.saves_for_backward = false;
    expect_agrees(spec, context);
  }

  // Random windows over random images, padding at most half the kernel.
  void expect_windows_agree(OpKind kind, uint64_t seed) {
    Dice dice(seed);
    for (int i = 0; i < 40 && !HasFailure(); ++i) {
      const Shape x = dice.images(dice.channels(), 3, 13);
      Window w{dice.small(1, 4), dice.small(1, 4), dice.small(1, 3), dice.small(1, 3)};
      w.pad_h = dice.small(0, w.kernel_h / 2), w.pad_w = dice.small(0, w.kernel_w / 2);
      w.dilation_h = dice.small(1, 2), w.dilation_w = dice.small(1, 2);
      const StepContext context = dice.context(x[0]);
      PoolAttrs attrs{w, dice.coin()};
      attrs.relu = kind == OpKind::MaxPool && dice.coin();
      if (w.out_h(x[2]) < 1 || w.out_w(x[3]) < 1) continue;
      expect_all_passes_agree({.kind = kind, .x = x, .attrs = attrs}, context);
    }
  }
};

TEST_F(CudaPool, MaxAgreesWithReference) { expect_windows_agree(OpKind::MaxPool, 41); }
TEST_F(CudaPool, AverageAgreesWithReference) { expect_windows_agree(OpKind::AvgPool, 42); }

// Those that have kernels of their own, at every way the image can end.
TEST_F(CudaPool, TheModelsWindowsAgreeWithReference) {
  for (const Window& w : {Window::square(2, 2), Window::square(3, 2), Window::square(3, 2, 1)}) {
    for (const Shape& x : {Shape{2, 64, 14, 15}, Shape{3, 13, 15, 14}, Shape{1, 3, 3, 3}, Shape{2, 8, 4, 33}}) {
      for (bool relu : {false, true}) {
        if (HasFailure()) return;
        PoolAttrs attrs{w};
        attrs.relu = relu;
        expect_all_passes_agree({.kind = OpKind::MaxPool, .x = x, .attrs = attrs}, {.rows = x[0]});
      }
    }
  }
}

TEST_F(CudaPool, AdaptiveAgreesWithReference) {
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
}

TEST_F(CudaPool, GlobalAgreesWithReference) {
  for (const Shape& x : {Shape{3, 64, 7, 7}, Shape{2, 13, 1, 5}, Shape{5, 5, 9, 8}, Shape{1, 2048, 7, 7}}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
      expect_agrees({.kind = OpKind::AdaptiveAvgPool, .pass = pass, .x = x, .attrs = AdaptivePoolAttrs{1, 1}},
                    {.rows = x[0]});
    }
  }
}

class CudaMaxPool : public CudaPool {
 protected:
  void expect_same(const Shape& x, const Window& window, const std::vector<float>& values) {
    const Plain plain{{"x", values}};
    for (bool relu : {false, true}) {
      PoolAttrs attrs{window};
      attrs.relu = relu;
      NodeSpec spec{.kind = OpKind::MaxPool, .x = x, .attrs = attrs};
      const Plain expected = run_node(*reference_, build_for_reference(spec), {.rows = x[0]}, plain);
      for (DType dtype : kTypes) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << ", relu " << relu);
        spec.dtype = dtype;
        const Plain actual = run_node(*cuda_, build_as_emitted(spec), {.rows = x[0]}, plain);
        EXPECT_EQ(actual.at("argmax"), expected.at("argmax"));
        for (size_t i = 0; i < expected.at("y").size(); ++i) {
          const float want = expected.at("y")[i], got = actual.at("y")[i];
          EXPECT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << i << ": " << want << " " << got;
        }
      }
    }
  }
};

TEST_F(CudaMaxPool, TiesTakeTheFirstCell) {
  expect_same({1, 1, 4, 4}, Window::square(2, 2), std::vector<float>(16, 3));
  expect_same({1, 1, 2, 4}, Window::square(2, 2), {1, 4, 5, 5, 4, 4, 5, 5});
  expect_same({1, 1, 4, 4}, Window::square(3, 2, 1), std::vector<float>(16, -3));
  expect_same({1, 1, 4, 4}, Window::square(3, 1, 1), std::vector<float>(16, 0));
}

TEST_F(CudaMaxPool, FirstNaNWins) {
  expect_same({1, 1, 2, 2}, Window::square(2), {9, NAN, NAN, 10});
  expect_same({1, 1, 2, 2}, Window::square(2), {9, 11, NAN, 10});
  expect_same({1, 1, 2, 2}, Window::square(2, 2), {-9, -11, NAN, -10});
}

TEST_F(CudaMaxPool, NothingButMinusInfinityStillHasAWinner) {
  expect_same({1, 1, 2, 2}, Window::square(3, 2, 1), std::vector<float>(4, -INFINITY));
  expect_same({1, 1, 3, 3}, Window::square(2, 1, 1), std::vector<float>(9, -INFINITY));
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
