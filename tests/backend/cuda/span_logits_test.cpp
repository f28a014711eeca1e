#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using CudaSpanLogits = CudaKernels;

TEST_F(CudaSpanLogits, AgreesWithReference) {
  Dice dice(91);
  for (int i = 0; i < 24 && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::SpanLogits, .x = {dice.between(1, 5), dice.between(1, 400), dice.pick({1, 2, 3})}};
    if (dice.coin()) spec.table = {spec.x[0], dice.between(1, 3), spec.x[1]};
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      for (DType dtype : kTypes) {
        spec.pass = pass;
        spec.dtype = dtype;
        const OneNode one = build_as_emitted(spec);
        const StepContext context = dice.context(spec.x[0]);
        const Plain plain = random_rounded(one, context, ++seed_);
        Plain expected = run_node(*reference_, build_for_reference(spec), context, plain);
        for (auto& [buffer, values] : expected) {
          for (float& value : values) value = rounded(value, dtype);
        }
        // Nothing is computed: all bits are the same.
        EXPECT_EQ(expected, run_on_dirty_memory(*cuda_, one, context, plain))
            << spec.x.str() << " " << graph::name_of(pass) << " in " << name_of(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
