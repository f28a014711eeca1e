// Winograd's own rounding: its transforms add and subtract before they multiply, which costs digits that direct
// convolution keeps. How many is measured here, and bounded.
#include <fmt/format.h>

#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::Conv2dAttrs;
using graph::Window;

double relative_distance(const std::vector<float>& actual, const std::vector<float>& expected) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    distance += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(distance / norm);
}

struct Rounding {
  std::string algorithm;
  double error;  // ||computed - exact|| / ||exact||
};

class Winograd : public CpuKernels {
 protected:
  Rounding rounding(Convolution convolution, const OneNode& one, const Plain& plain, const std::vector<float>& exact) {
    const auto cpu = make_cpu(convolution);
    NodeRun run(*cpu, one);
    run.fill(plain);
    run.run(context_);
    const std::string result = one.buffer(one.node().writes[0]).name;
    return {cpu->prepare(one.view()).algorithm, relative_distance(run.results().at(result), exact)};
  }

  std::vector<float> exact_result(const OneNode& one, const Plain& plain) {
    NodeRun run(*reference_, one);
    run.fill(plain);
    run.run(context_);
    return run.results().begin()->second;
  }

  void expect_bounded(Pass pass, double bound) {
    const OneNode one = build_as_emitted({.kind = OpKind::Conv2d,
                                          .pass = pass,
                                          .x = {4, 64, 28, 28},
                                          .attrs = Conv2dAttrs{64, Window::square(3, 1, 1), 1, false}});
    const Plain plain = random_plain(one, context_, 5);
    const std::vector<float> exact = exact_result(one, plain);

    const Rounding direct = rounding(Convolution::Direct, one, plain, exact);
    const Rounding winograd = rounding(Convolution::Winograd, one, plain, exact);
    EXPECT_EQ(direct.algorithm.substr(0, 6), "direct");
    if (winograd.algorithm != "winograd") GTEST_SKIP() << "oneDNN has no Winograd for this machine";
    RecordProperty("direct", fmt::format("{:.2e}", direct.error));
    RecordProperty("winograd", fmt::format("{:.2e}", winograd.error));
    EXPECT_LT(direct.error, 4e-6);
    EXPECT_LT(winograd.error, bound);
    if (pass != Pass::WeightGrad) {
      EXPECT_GT(winograd.error, 1.5 * direct.error) << "this does not measure Winograd";
    }
  }

  void expect_own_bounded(Convolution convolution, const char* algorithm, int channels, int64_t extent, int stride,
                          double bound) {
    for (const Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
      const OneNode one = build_as_emitted({.kind = OpKind::Conv2d,
                                            .pass = pass,
                                            .x = {4, channels, extent, extent},
                                            .attrs = Conv2dAttrs{channels, Window::square(3, stride, 1), 1, false}});
      const Plain plain = random_plain(one, context_, 5);
      const Rounding own = rounding(convolution, one, plain, exact_result(one, plain));
      if (own.algorithm != algorithm) GTEST_SKIP() << "the layout of the weights is not ours";
      RecordProperty(fmt::format("{}x{}_{}", extent, extent, name_of(pass)), fmt::format("{:.2e}", own.error));
      EXPECT_LT(own.error, bound);
    }
  }

  const StepContext context_{.rows = 4};
};

// Measured with AVX-512 and oneDNN 2.6.3, 64 channels of 28x28, batch 4, and bounded at about four times that:
//                 F        I        W
//   direct      2.2e-7   2.2e-7   9.9e-7
//   winograd    7.9e-7   7.8e-7   6.9e-7
// The weight gradient sums over every pixel of the batch. Winograd splits that sum over its tiles and comes out no
// worse than direct, so there only the bound is checked.
TEST_F(Winograd, ForwardRoundingIsBounded) { expect_bounded(Pass::Forward, 3e-6); }
TEST_F(Winograd, InputGradRoundingIsBounded) { expect_bounded(Pass::InputGrad, 3e-6); }
TEST_F(Winograd, WeightGradRoundingIsBounded) { expect_bounded(Pass::WeightGrad, 3e-6); }

// Ours, where all tiles are long (64 channels of 28x28) and where half of them are short along each axis (256 channels
// of 14x14), measured with AVX-512 and bounded at about three times the worst:
//             F        I        W
//   28x28   1.7e-6   1.7e-6   2.1e-6
//   14x14   2.7e-6   2.7e-6   1.1e-6
// Short tiles round better than long ones: it is the sum over more channels that costs digits.
TEST_F(Winograd, OwnRoundingIsBoundedForLongAndShortTiles) {
  expect_own_bounded(Convolution::WinogradBlocks, "winograd_blocks", 64, 28, 1, 8e-6);
  expect_own_bounded(Convolution::WinogradBlocks, "winograd_blocks", 256, 14, 1, 8e-6);
}

// With stride 2, to the same images:
//             F        I        W
//   28x28   1.7e-6   8.5e-7   1.4e-6
//   14x14   2.4e-6   1.1e-6   5.3e-7
TEST_F(Winograd, OwnRoundingIsBoundedForStrides) {
  expect_own_bounded(Convolution::WinogradPhases, "winograd_phases", 64, 56, 2, 7e-6);
  expect_own_bounded(Convolution::WinogradPhases, "winograd_phases", 256, 28, 2, 7e-6);
}

TEST_F(Winograd, FallsBackToDirectWhereItDoesNotExist) {
  const auto cpu = make_cpu(Convolution::Winograd);
  for (const Window& w :
       {Window::square(1), Window::square(3, 2, 1), Window::square(5, 1, 2), Window::square(3, 1, 2, 2)}) {
    const NodeSpec spec{.kind = OpKind::Conv2d, .x = {2, 16, 7, 7}, .attrs = Conv2dAttrs{16, w}};
    EXPECT_EQ(cpu->prepare(build_as_emitted(spec).view()).algorithm.substr(0, 6), "direct");
    expect_agrees(*cpu, spec, {.rows = 2});
  }
}

TEST_F(Winograd, IsNeverTakenWhenItIsOff) {
  const NodeSpec spec{.kind = OpKind::Conv2d, .x = {8, 64, 28, 28}, .attrs = Conv2dAttrs{64, Window::square(3, 1, 1)}};
  EXPECT_EQ(make_cpu(Convolution::Direct)->prepare(build_as_emitted(spec).view()).algorithm.substr(0, 6), "direct");
}

// Odd extents leave tiles half outside the image; bias and ReLU are applied after the inverse transform.
TEST_F(Winograd, AgreesOnOddExtentsWithBiasAndRelu) {
  const auto cpu = make_cpu(Convolution::Winograd);
  Dice dice(21);
  for (int i = 0; i < 10; ++i) {
    const Shape x = dice.images(dice.pick({16, 32, 48}), 3, 15);
    const Conv2dAttrs attrs{static_cast<int>(dice.pick({16, 32, 64})), Window::square(3, 1, dice.small(0, 1)), 1,
                            dice.coin(), dice.coin()};
    const StepContext context{.rows = x[0]};
    for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
      const OneNode one = build_as_emitted({.kind = OpKind::Conv2d, .pass = pass, .x = x, .attrs = attrs});
      const Plain plain = random_plain(one, context, 100 + i);
      SCOPED_TRACE(fmt::format("{} on {} with {}", graph::name_of(pass), x.str(), cpu->prepare(one.view()).algorithm));
      expect_close(one, context, run_node(*reference_, one, context, plain),
                   run_on_dirty_memory(*cpu, one, context, plain), 5e-5);
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
