#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using CpuSpanLogits = CpuKernels;

TEST_F(CpuSpanLogits, AgreesWithReference) {
  Dice dice(91);
  for (int i = 0; i < 12 && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::SpanLogits, .x = {dice.between(1, 5), dice.between(1, 70), dice.pick({1, 2, 3})}};
    if (dice.coin()) spec.table = {spec.x[0], dice.between(1, 3), spec.x[1]};
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      const OneNode one = build_as_emitted(spec);
      const StepContext context = dice.context(spec.x[0]);
      const Plain plain = random_plain(one, context, ++seed_);
      // Nothing is computed: all bits are the same.
      EXPECT_EQ(run_node(*reference_, one, context, plain), run_on_dirty_memory(*cpu_, one, context, plain))
          << spec.x.str() << " " << graph::name_of(pass);
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
