// The kernels that look at one element at a time: ReLU, add, accumulate, dropout, and the change of layout in flatten.
#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

class CudaElementwise : public CudaKernels {
 protected:
  static constexpr int kShapes = 16;
  static Shape random_shape(Dice& dice) {
    if (dice.coin()) return dice.images(dice.channels(), 1, 9);
    const int64_t batch = dice.between(1, 5), width = dice.between(1, 70);
    return dice.coin() ? Shape{batch, width} : Shape{batch, dice.between(1, 9), width};
  }
};

TEST_F(CudaElementwise, ReluAgreesWithReference) {
  Dice dice(51);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::Relu, .x = random_shape(dice)};
    const StepContext context = dice.context(spec.x[0]);
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      expect_agrees_in_place(spec, context, {{0, 0}});
    }
  }
}

TEST_F(CudaElementwise, ReluKeepsNaN) {
  for (DType dtype : kTypes) {
    const OneNode forward = build_as_emitted({.kind = OpKind::Relu, .x = {1, 3}, .dtype = dtype});
    const std::vector<float> y = run_node(*cuda_, forward, {.rows = 1}, {{"x", {NAN, -1, 2}}}).at("y");
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], 0);
    EXPECT_EQ(y[2], 2);
    const OneNode backward =
        build_as_emitted({.kind = OpKind::Relu, .pass = Pass::InputGrad, .x = {1, 3}, .dtype = dtype});
    const Plain gradient{{"dy", {NAN, NAN, 2}}, {"y", {1, 0, NAN}}};
    const std::vector<float> dx = run_node(*cuda_, backward, {.rows = 1}, gradient).at("dx");
    EXPECT_TRUE(std::isnan(dx[0]));
    EXPECT_EQ(dx[1], 0);
    EXPECT_EQ(dx[2], 0);
  }
}

TEST_F(CudaElementwise, AddAgreesWithReference) {
  Dice dice(52);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::Add, .x = random_shape(dice)};
    const StepContext context = dice.context(spec.x[0]);
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      expect_agrees_in_place(spec, context, {{0, 0}, {0, 1}});
    }
  }
}

TEST_F(CudaElementwise, AccumulateAgreesWithReference) {
  for (const Shape& x : {Shape{17}, Shape{64}, Shape{5, 33}, Shape{16, 3, 3, 3}, Shape{5, 13, 1, 2}, Shape{8, 8, 3, 3},
                         Shape{1000, 2048}}) {
    expect_agrees({.kind = OpKind::Accumulate, .pass = Pass::WeightGrad, .x = x}, {.rows = 1});
    for (bool sum : {false, true}) {
      expect_agrees({.kind = OpKind::Accumulate, .pass = Pass::Update, .x = x, .gradient_sum = sum}, {.rows = 1});
    }
  }
}

TEST_F(CudaElementwise, DropoutDrawsTheMaskOfTheReference) {
  Dice dice(53);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    for (double probability : {0.0, 0.3, 0.5, 1.0}) {
      const Shape x = i % 4 == 0 ? Shape{dice.between(1, 5), 16 * dice.between(1, 40)} : random_shape(dice);
      NodeSpec spec{.kind = OpKind::Dropout, .x = x, .attrs = graph::DropoutAttrs{probability}};
      const StepContext context = dice.context(x[0]);
      for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
        spec.pass = pass;
        expect_agrees_in_place(spec, context, {{0, 0}});
      }
    }
  }
}

TEST_F(CudaElementwise, DropoutOfLateRowsAndStepsDrawsTheMaskOfTheReference) {
  const StepContext context{
      .seed = 0x123456789ABCDEFu, .step = int64_t{1} << 33, .first_row = int64_t{5} << 32, .rows = 3};
  for (const Shape& x : {Shape{3, 64}, Shape{3, 5}, Shape{3, 5, 8}, Shape{3, 5, 3, 2}}) {
    expect_agrees({.kind = OpKind::Dropout, .x = x, .attrs = graph::DropoutAttrs{0.5}}, context);
  }
}

TEST_F(CudaElementwise, FlattenAgreesWithReference) {
  Dice dice(54);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    const int64_t largest = i % 4 == 0 ? 1 : 9;
    NodeSpec spec{.kind = OpKind::Flatten, .x = dice.images(dice.channels(), 1, largest)};
    if (i % 8 == 7) spec.x = {dice.between(1, 5), dice.between(1, 70)};
    if (i % 8 == 3) spec.x = {dice.between(1, 5), dice.between(1, 9), dice.between(1, 70)};
    const StepContext context = dice.context(spec.x[0]);
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
