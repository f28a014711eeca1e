// Our own convolution as a product of matrices against the reference, as it stands and by Strassen, over odd pixel
// counts, strides, windows, and channel counts that panels and halves do not divide.
#include <fmt/format.h>

#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::Conv2dAttrs;
using graph::Window;

constexpr Pass kPasses[] = {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad};

class MatrixConv : public CpuKernels {
 protected:
  static NodeSpec spec(Pass pass, const Shape& x, int out, const Window& window = Window::square(1)) {
    return {.kind = OpKind::Conv2d, .pass = pass, .x = x, .attrs = Conv2dAttrs{out, window, 1, false}};
  }
  static std::string algorithm_of(Backend& cpu, const NodeSpec& spec) {
    return cpu.prepare(build_as_emitted(spec).view()).algorithm;
  }
  void expect_right(Convolution convolution, const std::string& algorithm, const NodeSpec& spec) {
    const auto cpu = make_cpu(convolution);
    if (algorithm_of(*cpu, spec).starts_with("direct")) GTEST_SKIP() << "oneDNN keeps filters otherwise here";
    EXPECT_EQ(algorithm_of(*cpu, spec), algorithm) << spec.x.str();
    expect_agrees(*cpu, spec, {.rows = spec.x[0]});
  }
};

TEST_F(MatrixConv, MatchesTheReference) {
  for (const Pass pass : kPasses) {
    for (const auto& [in, out] : {std::pair{16, 64}, {48, 32}, {32, 176}, {160, 16}}) {
      for (const auto& [height, width] : {std::pair{1, 1}, {5, 7}, {14, 14}, {17, 31}}) {
        expect_right(Convolution::Product, "product", spec(pass, {3, in, height, width}, out));
      }
    }
  }
}

TEST_F(MatrixConv, StepsOverPixels) {
  for (const Pass pass : kPasses) {
    for (const int stride : {2, 3}) {
      for (const auto& [height, width] : {std::pair{7, 9}, {8, 6}, {28, 30}}) {
        expect_right(Convolution::Product, "product",
                     spec(pass, {2, 32, height, width}, 80, Window::square(1, stride)));
      }
    }
  }
}

TEST_F(MatrixConv, BringsTogetherWhatTapsRead) {
  for (const Pass pass : kPasses) {
    for (const Window& window : {Window::square(3, 2, 1), Window::square(3, 2, 0), Window::square(5, 3, 2),
                                 Window::square(3, 2, 2, 2), Window{3, 1, 2, 1, 1, 0, 1, 1}}) {
      expect_right(Convolution::Product, "product", spec(pass, {2, 32, 9, 12}, 80, window));
      expect_right(Convolution::Product, "product", spec(pass, {1, 16, 31, 17}, 16, window));
    }
  }
}

TEST_F(MatrixConv, IsNotOfferedWithBiasGroupsOrWhereWinogradIsAtHome) {
  const auto cpu = make_cpu(Convolution::Product);
  for (const Conv2dAttrs& attrs :
       {Conv2dAttrs{32, Window::square(1), 1, true}, Conv2dAttrs{32, Window::square(1), 2, false},
        Conv2dAttrs{32, Window::square(1, 1, 1), 1, false}, Conv2dAttrs{32, Window::square(3, 1, 1), 1, false}}) {
    const NodeSpec other{.kind = OpKind::Conv2d, .x = {2, 32, 6, 6}, .attrs = attrs};
    EXPECT_TRUE(algorithm_of(*cpu, other).starts_with("direct"));
    expect_agrees(*cpu, other, {.rows = 2});
  }
}

class Strassen : public MatrixConv {
 protected:
  // Sums of quarters cancel again: its worst element rounds a few times worse.
  Strassen() { tolerance_ = 2e-5; }
};

TEST_F(Strassen, MatchesTheReference) {
  for (const Pass pass : kPasses) {
    for (const auto& [height, width] : {std::pair{7, 7}, {5, 3}, {14, 14}, {31, 17}}) {
      expect_right(Convolution::Strassen, "strassen", spec(pass, {3, 128, height, width}, 128));
      expect_right(Convolution::Strassen, "strassen", spec(pass, {5, 128, height, width}, 256));
    }
  }
}

TEST_F(Strassen, StepsOverPixels) {
  for (const Pass pass : kPasses) {
    for (const auto& [height, width] : {std::pair{9, 13}, {14, 14}, {28, 30}}) {
      expect_right(Convolution::Strassen, "strassen", spec(pass, {2, 128, height, width}, 128, Window::square(1, 2)));
      expect_right(Convolution::Strassen, "strassen",
                   spec(pass, {2, 128, height, width}, 128, Window::square(3, 2, 1)));
    }
  }
}

TEST_F(Strassen, IsNotOfferedWhereHalvesAreNoPanels) {
  EXPECT_NE(algorithm_of(*make_cpu(Convolution::Strassen), spec(Pass::Forward, {2, 64, 8, 8}, 80)), "strassen");
  EXPECT_NE(algorithm_of(*make_cpu(Convolution::Strassen), spec(Pass::Forward, {2, 48, 8, 8}, 128)), "strassen");
  EXPECT_NE(algorithm_of(*make_cpu(Convolution::Strassen), spec(Pass::Forward, {2, 128, 3, 3}, 128)), "strassen");
}

TEST_F(Strassen, IsNeverTakenWhereEveryMultiplicationIsAskedFor) {
  EXPECT_NE(algorithm_of(*make_cpu(Convolution::Direct), spec(Pass::Forward, {8, 256, 14, 14}, 256)), "strassen");
}

// What a sample becomes must not depend on the batch it is in: caches and evaluations over replicas rely on it.
TEST_F(Strassen, ASampleIsItsOwn) {
  for (const Pass pass : {Pass::Forward, Pass::InputGrad}) {
    const auto cpu = make_cpu(Convolution::Strassen);
    const OneNode one = build_as_emitted(spec(pass, {3, 128, 7, 9}, 128));
    const StepContext context{.rows = 3};
    const Plain plain = random_plain(one, context, 1);
    Plain others = random_plain(one, context, 2);
    const size_t sample = 128 * 7 * 9;
    for (auto& [name, values] : others) {
      const std::vector<float>& mine = plain.at(name);
      const bool per_sample = values.size() == 3 * sample;
      std::copy_n(mine.begin(), per_sample ? sample : mine.size(), values.begin());
    }
    NodeRun with(*cpu, one), without(*cpu, one);
    with.fill(plain);
    with.run(context);
    without.fill(others);
    without.run(context);
    const std::vector<float> a = with.results().begin()->second, b = without.results().begin()->second;
    ASSERT_EQ(a.size(), 3 * sample);
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + sample, b.begin()));
    EXPECT_FALSE(std::equal(a.begin() + sample, a.end(), b.begin() + sample)) << "this compares nothing";
  }
}

// Measured with AVX-512 for 512 channels of 14 x 14, batch 4, and bounded at about four times that:
//                 F        I        W
//   product     4.1e-7   4.1e-7   2.6e-7
//   strassen    9.0e-7   8.9e-7   5.6e-7
TEST_F(Strassen, RoundingIsBounded) {
  for (const Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
    const OneNode one = build_as_emitted(spec(pass, {4, 512, 14, 14}, 512));
    const StepContext context{.rows = 4};
    const Plain plain = random_plain(one, context, 5);
    const auto result = [&](Backend& backend) {
      NodeRun run(backend, one);
      run.fill(plain);
      run.run(context);
      return run.results().begin()->second;
    };
    const std::vector<float> exact = result(*reference_);
    const auto error = [&](Convolution convolution) {
      const std::vector<float> computed = result(*make_cpu(convolution));
      double distance = 0, norm = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        distance += std::pow(double{computed[i]} - exact[i], 2);
        norm += std::pow(double{exact[i]}, 2);
      }
      return std::sqrt(distance / norm);
    };
    const double plain_error = error(Convolution::Product), strassen_error = error(Convolution::Strassen);
    RecordProperty(fmt::format("{}_product", graph::name_of(pass)), fmt::format("{:.2e}", plain_error));
    RecordProperty(fmt::format("{}_strassen", graph::name_of(pass)), fmt::format("{:.2e}", strassen_error));
    EXPECT_LT(strassen_error, 4e-6);
    EXPECT_GT(strassen_error, 1.5 * plain_error) << "this does not measure Strassen";
  }
}

}  // namespace
}  // namespace millrace::backend::harness
