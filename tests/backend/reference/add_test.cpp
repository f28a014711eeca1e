#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

TEST(ReferenceAdd, SumsTwoValuesInAnyPass) {
  const auto backend = make_reference_backend({});
  for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
    const OneNode one = build({.kind = OpKind::Add, .pass = pass, .x = {1, 3}});
    const Plain results = run_node(*backend, one, {.rows = 1}, {{"a", {1, 2, 3}}, {"b", {10, -20, 0.5}}});
    EXPECT_EQ(results.at("y"), (std::vector<float>{11, -18, 3.5}));
  }
}

TEST(ReferenceAccumulate, AddsPartToTotal) {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::Accumulate, .pass = Pass::WeightGrad, .x = {2}});
  NodeRun run(*backend, one);
  run.fill({{"total", {1, 2}}, {"part", {10, 20}}});
  run.run({});
  run.run({});
  EXPECT_EQ(run.results().at("total"), (std::vector<float>{21, 42}));
}

TEST(ReferenceAccumulate, ClearsPartThatIsASumItself) {
  const auto backend = make_reference_backend({});
  for (bool sum : {true, false}) {
    NodeSpec spec{.kind = OpKind::Accumulate, .pass = Pass::Update, .x = {2}};
    spec.gradient_sum = sum;
    const Plain results = run_node(*backend, build(spec), {}, {{"total", {1, 2}}, {"part", {10, 20}}});
    EXPECT_EQ(results.at("total"), (std::vector<float>{11, 22}));
    EXPECT_EQ(results.at("part"), (sum ? std::vector<float>{0, 0} : std::vector<float>{10, 20}));
  }
}

}  // namespace
}  // namespace millrace::backend::harness
