#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::Conv2dAttrs;
using graph::Window;

class CpuConv : public CpuKernels {
 protected:
  void expect_all_passes_agree(Backend& cpu, NodeSpec spec, const StepContext& context, Reads reads) {
    const auto attrs = std::get<Conv2dAttrs>(spec.attrs);
    const Window& w = attrs.window;
    SCOPED_TRACE(
        fmt::format("{} out, {} groups, kernel {}x{}, stride {}x{}, pad {}x{}, dilation {}x{}, bias {}, relu {}",
                    attrs.out_channels, attrs.groups, w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.pad_h, w.pad_w,
                    w.dilation_h, w.dilation_w, attrs.bias, attrs.relu));
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad}) {
      if (pass == Pass::InputGrad && reads == Reads::Images) continue;  // nothing asks for it
      spec.pass = pass;
      expect_agrees(cpu, spec, context, reads);
    }
  }
};

NodeSpec conv(const Shape& x, const Conv2dAttrs& attrs) { return {.kind = OpKind::Conv2d, .x = x, .attrs = attrs}; }

// Windows that fit their image, of any stride, padding below the kernel, and dilation.
Conv2dAttrs random_conv(Dice& dice, const Shape& x) {
  for (;;) {
    Window w{dice.small(1, 5), dice.small(1, 5), dice.small(1, 3), dice.small(1, 3)};
    w.pad_h = dice.small(0, w.kernel_h - 1), w.pad_w = dice.small(0, w.kernel_w - 1);
    w.dilation_h = dice.small(1, 2), w.dilation_w = dice.small(1, 2);
    if (w.out_h(x[2]) < 1 || w.out_w(x[3]) < 1) continue;
    return {static_cast<int>(dice.channels()), w, 1, dice.coin(), dice.coin()};
  }
}

TEST_F(CpuConv, RandomWindowsAgreeWithReference) {
  Dice dice(11);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const Shape x = dice.images(dice.channels(), 3, 13);
    const StepContext context = dice.context(x[0]);
    expect_all_passes_agree(*cpu_, conv(x, random_conv(dice, x)), context, Reads::Value);
  }
}

TEST_F(CpuConv, FirstLayersOverPlainImagesAgreeWithReference) {
  Dice dice(12);
  for (int i = 0; i < 16 && !HasFailure(); ++i) {
    const Shape x = dice.images(dice.pick({1, 3, 3, 5, 16}), 5, 15);
    const StepContext context = dice.context(x[0]);
    expect_all_passes_agree(*cpu_, conv(x, random_conv(dice, x)), context, Reads::Images);
  }
  for (const Window& stem : {Window::square(7, 2, 3), Window::square(11, 4, 2), Window::square(3, 1, 1)}) {
    expect_all_passes_agree(*cpu_, conv({2, 3, 23, 25}, {64, stem, 1, true, true}), {.rows = 2}, Reads::Images);
  }
}

TEST_F(CpuConv, GroupsAgreeWithReference) {
  Dice dice(13);
  for (int64_t groups : {2, 3, 4, 16, 32}) {
    for (int64_t in_per_group : {1, 3, 8, 16}) {
      if (HasFailure() || groups * in_per_group > 64) continue;
      const Shape x = dice.images(groups * in_per_group, 4, 9);
      Conv2dAttrs attrs{static_cast<int>(groups * dice.pick({1, 2, 5, 16})), Window::square(3, dice.small(1, 2), 1)};
      attrs.groups = static_cast<int>(groups);
      attrs.bias = dice.coin(), attrs.relu = dice.coin();
      const StepContext context = dice.context(x[0]);
      expect_all_passes_agree(*cpu_, conv(x, attrs), context, Reads::Value);
    }
  }
}

// The layers of the residual networks at a small size: full channel blocks, where oneDNN has its best kernels.
TEST_F(CpuConv, FullBlocksAgreeWithReference) {
  for (bool relu : {false, true}) {
    for (const Window& w :
         {Window::square(1), Window::square(1, 2), Window::square(3, 1, 1), Window::square(3, 2, 1)}) {
      expect_all_passes_agree(*cpu_, conv({3, 32, 9, 9}, {64, w, 1, relu, relu}), {.rows = 3}, Reads::Value);
    }
  }
}

TEST_F(CpuConv, LastRowsAStrideNeverReachesGetNoGradient) {
  const NodeSpec spec = conv({2, 16, 8, 8}, {16, Window::square(3, 3), 1, false});
  expect_all_passes_agree(*cpu_, spec, {.rows = 2}, Reads::Value);
}

// Which of two layouts is faster is measured; each must be right. The file of choices lets the second run take what
// the first did not.
TEST_F(CpuConv, TheSlowerLayoutAgreesToo) {
  const auto file = std::filesystem::path(testing::TempDir()) / fmt::format("choices_{}.json", getpid());
  std::filesystem::remove(file);
  auto run_all = [&] {
    const auto cpu = make_cpu(Convolution::Direct, file);
    Dice dice(14);
    for (int i = 0; i < 12 && !HasFailure(); ++i) {
      const Shape x = dice.images(dice.pick({1, 3, 5, 17}), 4, 9);
      const StepContext context = dice.context(x[0]);
      expect_all_passes_agree(*cpu, conv(x, random_conv(dice, x)), context, Reads::Value);
    }
  };
  run_all();
  auto choices = nlohmann::json::parse(std::ifstream(file));
  EXPECT_GE(choices.size(), 12u);
  for (auto& choice : choices) choice = choice == "direct" ? "direct_any" : "direct";
  std::ofstream(file) << choices;
  run_all();
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file)), choices) << "the second run measured again";
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace millrace::backend::harness
