#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

class CudaLinear : public CudaKernels {
 protected:
  void expect_all_passes_agree(const Shape& x, const graph::LinearAttrs& attrs, const StepContext& context) {
    SCOPED_TRACE(testing::Message() << attrs.out_features << " features, bias " << attrs.bias << ", relu "
                                    << attrs.relu);
    NodeSpec spec{.kind = OpKind::Linear, .x = x, .attrs = attrs};
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad}) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
};

TEST_F(CudaLinear, AgreesWithReference) {
  Dice dice(61);
  for (int i = 0; i < 40 && !HasFailure(); ++i) {
    const int64_t batch = dice.between(1, 5), width = dice.pick({1, 3, 5, 16, 17, 100, 257});
    const Shape x = i % 3 == 0 ? Shape{batch, dice.pick({1, 2, 7, 33}), width} : Shape{batch, width};
    const auto features = static_cast<int>(dice.pick({1, 3, 10, 16, 17, 64, 129}));
    const StepContext context = dice.context(x[0]);
    expect_all_passes_agree(x, {features, dice.coin(), dice.coin()}, context);
  }
}

TEST_F(CudaLinear, ClassifierAgreesWithReference) {
  for (bool relu : {false, true}) expect_all_passes_agree({16, 512}, {1000, true, relu}, {.rows = 16});
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
