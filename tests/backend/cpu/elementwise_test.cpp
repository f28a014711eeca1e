// The kernels that look at one element at a time: ReLU, add, accumulate, dropout, and the change of layout in flatten.
#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

class CpuElementwise : public CpuKernels {
 protected:
  static constexpr int kShapes = 16;
  static Shape random_shape(Dice& dice) {
    if (dice.coin()) return dice.images(dice.channels(), 1, 9);
    const int64_t batch = dice.between(1, 5), width = dice.between(1, 70);
    return dice.coin() ? Shape{batch, width} : Shape{batch, dice.between(1, 9), width};
  }
};

TEST_F(CpuElementwise, ReluAgreesWithReference) {
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

TEST_F(CpuElementwise, AddAgreesWithReference) {
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

TEST_F(CpuElementwise, AccumulateAgreesWithReference) {
  for (const Shape& x : {Shape{17}, Shape{5, 33}, Shape{16, 3, 3, 3}}) {
    expect_agrees({.kind = OpKind::Accumulate, .pass = Pass::WeightGrad, .x = x}, {.rows = 1});
    for (bool sum : {false, true}) {
      expect_agrees({.kind = OpKind::Accumulate, .pass = Pass::Update, .x = x, .gradient_sum = sum}, {.rows = 1});
    }
  }
}

TEST_F(CpuElementwise, DropoutDrawsTheMaskOfTheReference) {
  Dice dice(53);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    for (double probability : {0.0, 0.3, 0.5, 1.0}) {
      NodeSpec spec{.kind = OpKind::Dropout, .x = random_shape(dice), .attrs = graph::DropoutAttrs{probability}};
      const StepContext context = dice.context(spec.x[0]);
      for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
        spec.pass = pass;
        expect_agrees_in_place(spec, context, {{0, 0}});
      }
    }
  }
}

TEST_F(CpuElementwise, FlattenAgreesWithReference) {
  Dice dice(54);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::Flatten, .x = random_shape(dice)};
    const StepContext context = dice.context(spec.x[0]);
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
