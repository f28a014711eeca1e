// Our own Winograd convolution, in both orders of its work, against the reference, over sizes that tiles, blocks and
// vectors do not divide.
#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::Conv2dAttrs;
using graph::Window;

struct Order {
  const char* algorithm;
  Convolution convolution;
};

class OwnWinograd : public CpuKernels, public testing::WithParamInterface<Order> {
 protected:
  // Winograd multiplies sums of several inputs and subtracts again: its worst element rounds about ten times worse than
  // direct convolution's (winograd_test.cpp bounds the norm).
  OwnWinograd() { tolerance_ = 3e-5; }

  void expect_right(const NodeSpec& spec) {
    const auto cpu = make_cpu(GetParam().convolution);
    taken_ += cpu->prepare(build_as_emitted(spec).view()).algorithm == GetParam().algorithm;
    ++asked_;
    expect_agrees(*cpu, spec, {.rows = spec.x[0]});
  }

  // oneDNN without AVX-512 keeps some filters in a layout that ours does not take.
  void TearDown() override { EXPECT_GE(2 * taken_, asked_) << "this does not test our Winograd"; }

  int taken_ = 0, asked_ = 0;

  // Every pass of a filter of `taps` over odd images, channel counts with and without a tail, and all paddings.
  void expect_all_passes_right(int taps) {
    for (const Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad}) {
      for (int pad = 0; pad < taps; ++pad) {
        for (const auto& [in, out] : {std::pair{16, 64}, {32, 48}, {48, 80}}) {
          const Shape x{pad % 3 + 1, in, 6 + pad, 9 + 2 * pad};
          expect_right({.kind = OpKind::Conv2d,
                        .pass = pass,
                        .x = x,
                        .attrs = Conv2dAttrs{out, Window::square(taps, 1, pad), 1, pad % 2 == 0, pad % 2 == 1}});
        }
      }
    }
  }
};

TEST_P(OwnWinograd, ThreeByThreeMatchesTheReference) { expect_all_passes_right(3); }
TEST_P(OwnWinograd, FiveByFiveMatchesTheReference) { expect_all_passes_right(5); }

TEST_P(OwnWinograd, ManyBlocksOfTilesMatchTheReference) {
  for (const Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
    expect_right({.kind = OpKind::Conv2d,
                  .pass = pass,
                  .x = {3, 64, 29, 27},
                  .attrs = Conv2dAttrs{64, Window::square(3, 1, 1)}});
  }
}

// Outputs that tiles of four do not divide are shared out over long tiles and short ones, along each axis.
TEST_P(OwnWinograd, EveryMixtureOfLongAndShortTilesMatchesTheReference) {
  for (const Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
    for (int64_t height = 1; height <= 14; ++height) {
      const int64_t width = height % 2 == 0 ? height : 15 - height;
      expect_right({.kind = OpKind::Conv2d,
                    .pass = pass,
                    .x = {2, 32, height, width},
                    .attrs = Conv2dAttrs{64, Window::square(3, 1, 1), 1, false}});
    }
  }
}

TEST_P(OwnWinograd, IsNotOfferedForOtherWindows) {
  const auto cpu = make_cpu(GetParam().convolution);
  for (const Window& w : {Window::square(1), Window::square(3, 2, 1), Window::square(7, 1, 3),
                          Window::square(3, 1, 2, 2), Window::square(3, 1, 3)}) {
    const NodeSpec spec{.kind = OpKind::Conv2d, .x = {2, 16, 9, 9}, .attrs = Conv2dAttrs{16, w}};
    EXPECT_NE(cpu->prepare(build_as_emitted(spec).view()).algorithm, GetParam().algorithm);
    expect_agrees(*cpu, spec, {.rows = 2});
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, OwnWinograd,
                         testing::Values(Order{"winograd_blocks", Convolution::WinogradBlocks},
                                         Order{"winograd_panels", Convolution::WinogradPanels}),
                         [](const auto& order) { return std::string(order.param.algorithm); });

}  // namespace
}  // namespace millrace::backend::harness
