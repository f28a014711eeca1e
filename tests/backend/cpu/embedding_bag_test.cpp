#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using CpuEmbeddingBag = CpuKernels;

TEST_F(CpuEmbeddingBag, AgreesWithReference) {
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

TEST_F(CpuEmbeddingBag, ATokenBeyondTheTableIsRefused) {
  const OneNode one = build({.kind = OpKind::EmbeddingBag, .x = {1, 2}, .table = {2, 1}});
  EXPECT_THROW(run_node(*cpu_, one, {.rows = 1}, {{"w", {1, 2}}, {"tokens", {0, 2}}}), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::backend::harness
