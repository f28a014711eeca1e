#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using CudaEmbeddingBag = CudaKernels;

TEST_F(CudaEmbeddingBag, AgreesWithReference) {
  Dice dice(71);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::EmbeddingBag, .x = {dice.between(1, 6), dice.between(1, 70)}};
    spec.table = {dice.pick({1, 3, 8, 100, 257}), dice.pick({1, 3, 16, 17, 33, 100})};
    SCOPED_TRACE(testing::Message() << "table " << spec.table.str());
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::WeightGrad}) {
      spec.pass = pass;
      expect_agrees(spec, dice.context(spec.x[0]));
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
