#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using CpuLinear = CpuKernels;

TEST_F(CpuLinear, AgreesWithReference) {
  Dice dice(61);
  for (int i = 0; i < 40 && !HasFailure(); ++i) {
    const int64_t batch = dice.between(1, 5), width = dice.pick({1, 3, 5, 16, 17, 100, 257});
    const Shape x = i % 3 == 0 ? Shape{batch, dice.pick({1, 2, 7, 33}), width} : Shape{batch, width};
    const auto features = static_cast<int>(dice.pick({1, 3, 10, 16, 17, 64, 129}));
    const StepContext context = dice.context(x[0]);
    NodeSpec spec{.kind = OpKind::Linear, .x = x, .attrs = graph::LinearAttrs{features, dice.coin(), dice.coin()}};
    SCOPED_TRACE(testing::Message() << features << " features");
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad}) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
}

TEST_F(CpuLinear, ClassifierAgreesWithReference) {
  for (bool relu : {false, true}) {
    NodeSpec spec{.kind = OpKind::Linear, .x = {16, 512}, .attrs = graph::LinearAttrs{1000, true, relu}};
    for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
      spec.pass = pass;
      expect_agrees(spec, {.rows = 16});
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
