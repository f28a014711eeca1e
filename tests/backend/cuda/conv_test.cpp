#include <fmt/format.h>

#include <array>

#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using graph::Conv2dAttrs;
using graph::Window;

class CudaConv : public CudaKernels {
 protected:
  void expect_all_passes_agree(const Shape& x, const Conv2dAttrs& attrs, const StepContext& context,
                               Reads reads = Reads::Value) {
    const Window& w = attrs.window;
    SCOPED_TRACE(
        fmt::format("{} out, {} groups, kernel {}x{}, stride {}x{}, pad {}x{}, dilation {}x{}, bias {}, relu {}",
                    attrs.out_channels, attrs.groups, w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.pad_h, w.pad_w,
                    w.dilation_h, w.dilation_w, attrs.bias, attrs.relu));
    NodeSpec spec{.kind = OpKind::Conv2d, .x = x, .attrs = attrs};
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad}) {
      if (pass == Pass::InputGrad && reads == Reads::Images) continue;  // nothing asks for it
      spec.pass = pass;
      expect_agrees(spec, context, reads);
    }
  }
};

// Windows that fit their image, of any stride and dilation, padding below the kernel.
Conv2dAttrs random_conv(Dice& dice, const Shape& x) {
  for (;;) {
    const auto kernel = static_cast<int>(dice.pick({1, 3, 5, 7}));
    Window w = Window::square(kernel, dice.small(1, 2), dice.small(0, kernel - 1), dice.small(1, 2));
    if (dice.coin()) w.kernel_w = 1, w.pad_w = 0;
    if (w.out_h(x[2]) < 1 || w.out_w(x[3]) < 1) continue;
    return {static_cast<int>(dice.channels()), w, 1, dice.coin(), dice.coin()};
  }
}

TEST_F(CudaConv, RandomWindowsAgreeWithReference) {
  Dice dice(11);
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    const Shape x = dice.images(dice.channels(), 5, 13);
    const StepContext context = dice.context(x[0]);
    const Conv2dAttrs attrs = random_conv(dice, x);
    expect_all_passes_agree(x, attrs, context);
  }
}

TEST_F(CudaConv, FirstLayersOverImagesAgreeWithReference) {
  for (const Window& stem : {Window::square(7, 2, 3), Window::square(11, 4, 2), Window::square(3, 1, 1)}) {
    expect_all_passes_agree({2, 3, 23, 25}, {64, stem, 1, true, true}, {.rows = 2}, Reads::Images);
  }
  expect_all_passes_agree({3, 1, 28, 28}, {13, Window::square(5), 1, true, false}, {.rows = 3}, Reads::Images);
}

TEST_F(CudaConv, GroupsAgreeWithReference) {
  Dice dice(13);
  for (const auto& [groups, in, out] :
       {std::array<int, 3>{2, 8, 8}, {2, 3, 5}, {4, 4, 8}, {3, 5, 1}, {32, 4, 4}, {8, 1, 1}, {13, 1, 2}}) {
    if (HasFailure()) return;
    const Shape x = dice.images(groups * in, 4, 9);
    const Conv2dAttrs attrs{groups * out, Window::square(3, dice.small(1, 2), 1), groups, dice.coin(), dice.coin()};
    const StepContext context = dice.context(x[0]);
    expect_all_passes_agree(x, attrs, context);
  }
}

TEST_F(CudaConv, SumsOfOutputsAgreeWithReference) {
  for (const Window& w : {Window::square(1), Window::square(3, 1, 1), Window::square(3, 2, 1)}) {
    for (int channels : {13, 64, 128}) {
      NodeSpec spec{.kind = OpKind::Conv2d, .x = {4, 64, 14, 14}, .attrs = Conv2dAttrs{channels, w, 1, false, false}};
      spec.sums = true;
      expect_agrees(spec, {.rows = 4});
    }
  }
}

// The layers of the residual networks at a small size: whole vectors of channels, where cuDNN has its best kernels.
TEST_F(CudaConv, FullVectorsAgreeWithReference) {
  for (bool relu : {false, true}) {
    for (const Window& w :
         {Window::square(1), Window::square(1, 2), Window::square(3, 1, 1), Window::square(3, 2, 1)}) {
      expect_all_passes_agree({3, 32, 9, 9}, {64, w, 1, relu, relu}, {.rows = 3});
    }
  }
}

TEST_F(CudaConv, LastRowsAStrideNeverReachesGetNoGradient) {
  expect_all_passes_agree({2, 16, 8, 8}, {16, Window::square(3, 3), 1, false}, {.rows = 2});
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
