// Winograd's convolution of stride 2 against the reference, at every extent that long and short tiles divide
// differently.
#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::Conv2dAttrs;
using graph::Window;

class WinogradPhases : public CpuKernels {
 protected:
  WinogradPhases() { tolerance_ = 3e-5; }

  // oneDNN without AVX-512 keeps some filters in a layout that ours does not take.
  void TearDown() override { EXPECT_GE(2 * taken_, asked_) << "this does not test our Winograd"; }

  void expect_right(const Shape& x, int out, int64_t rows) {
    for (const Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad}) {
      const NodeSpec spec{
          .kind = OpKind::Conv2d, .pass = pass, .x = x, .attrs = Conv2dAttrs{out, Window::square(3, 2, 1), 1, false}};
      const auto cpu = make_cpu(Convolution::WinogradPhases);
      taken_ += cpu->prepare(build_as_emitted(spec).view()).algorithm == "winograd_phases";
      ++asked_;
      expect_agrees(*cpu, spec, {.rows = rows});
    }
  }

  int taken_ = 0, asked_ = 0;
};

TEST_F(WinogradPhases, EveryExtentMatchesTheReference) {
  for (int height = 1; height <= 18; ++height) expect_right({2, 16, height, 19 - height}, 32, 2);
}

TEST_F(WinogradPhases, EveryNumberOfChannelsMatchesTheReference) {
  for (const auto& [in, out] : {std::pair{16, 16}, {48, 80}, {80, 48}, {64, 128}})
    expect_right({3, in, 14, 15}, out, 3);
}

TEST_F(WinogradPhases, ManyBlocksOfTilesMatchTheReference) { expect_right({5, 64, 56, 54}, 64, 5); }

// 12.9 MiB: both x and dx are larger than what is kept in the caches.
TEST_F(WinogradPhases, LargeImagesMatchTheReference) { expect_right({1, 32, 330, 322}, 16, 1); }

TEST_F(WinogradPhases, IsNotOfferedWhereItIsAnotherConvolution) {
  const auto cpu = make_cpu(Convolution::WinogradPhases);
  const auto algorithm = [&](const Conv2dAttrs& attrs) {
    return cpu
        ->prepare(
            build_as_emitted({.kind = OpKind::Conv2d, .pass = Pass::Forward, .x = {1, 16, 12, 12}, .attrs = attrs})
                .view())
        .algorithm;
  };
  EXPECT_NE(algorithm({16, Window::square(3, 2, 0), 1, false}), "winograd_phases");
  EXPECT_NE(algorithm({16, Window::square(3, 1, 1), 1, false}), "winograd_phases");
  EXPECT_NE(algorithm({16, Window::square(5, 2, 1), 1, false}), "winograd_phases");
  EXPECT_NE(algorithm({16, Window::square(3, 2, 1), 1, true}), "winograd_phases");
}

}  // namespace
}  // namespace millrace::backend::harness
