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

// GPT-2's vocabulary: the rows of logits have room behind them, which holds anything.
TEST_F(CudaLinear, WideOutputsAgreeWithReference) {
  for (int features : {1001, 50257}) {
    for (bool bias : {false, true}) expect_all_passes_agree({3, 5, 48}, {features, bias, false}, {.rows = 3});
  }
}

// What goes to another stage has no room.
TEST_F(CudaLinear, OutputsThatCrossStagesAgreeWithReference) {
  for (DType dtype : kTypes) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
      const NodeSpec spec{.kind = OpKind::Linear,
                          .pass = pass,
                          .x = {7, 24},
                          .attrs = graph::LinearAttrs{21, true, false},
                          .dtype = dtype};
      OneNode one = build_as_emitted(spec);
      const BufferId id = pass == Pass::Forward     ? one.node().writes[0]
                          : pass == Pass::InputGrad ? one.node().reads[0]
                                                    : one.node().reads[1];
      one.program.outputs = {{.value = 1, .buffer = id, .gradient = id}};
      const Plain plain = random_rounded(one, {.rows = 7}, ++seed_);
      expect_close_in_norm(one, {.rows = 7}, run_node(*reference_, build_for_reference(spec), {.rows = 7}, plain),
                           run_on_dirty_memory(*cuda_, one, {.rows = 7}, plain), tolerance_of(dtype));
    }
  }
}

// A gradient that is kept for a sum over replicas, or over the readers of a parameter: in 32 bits, the numbers that one
// worker has in sixteen.
TEST_F(CudaLinear, SharedGradientsAreRoundedAsThoseOfOneWorker) {
  for (int features : {17, 64}) {
    for (DType dtype : {DType::F16, DType::BF16}) {
      const OneNode one = build_as_emitted({.kind = OpKind::Linear,
                                            .pass = Pass::WeightGrad,
                                            .x = {4, 9, 24},
                                            .attrs = graph::LinearAttrs{features, true, false},
                                            .dtype = dtype});
      OneNode shared = one;
      for (BufferId id : shared.node().writes) shared.program.buffers[id].dtype = DType::F32;
      const Plain plain = random_rounded(one, {.rows = 4}, ++seed_);
      EXPECT_EQ(run_on_dirty_memory(*cuda_, one, {.rows = 4}, plain),
                run_on_dirty_memory(*cuda_, shared, {.rows = 4}, plain))
          << features << " features in " << name_of(dtype);
    }
  }
}

TEST_F(CudaLinear, ClassifierAgreesWithReference) {
  for (bool relu : {false, true}) expect_all_passes_agree({16, 512}, {1000, true, relu}, {.rows = 16});
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
