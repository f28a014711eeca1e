#include "backend/optimizer_golden.h"
#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

constexpr OpKind kSteps[] = {OpKind::SgdStep, OpKind::AdamStep, OpKind::LambStep};
const StepContext kContext{.update = 4, .learning_rate = 0.125f};
const OptimizerOptions kOptions{.momentum = 0.5f, .beta1 = 0.75f, .beta2 = 0.5f, .weight_decay = 0.25f};

NodeSpec step_spec(OpKind kind) { return {.kind = kind, .pass = Pass::Update, .x = {3, 5}}; }

TEST(ReferenceAdam, FollowsTorch) { expect_torch_adamw(*make_reference_backend(kGoldenAdam)); }

TEST(ReferenceLamb, FollowsThePaper) { expect_lamb(*make_reference_backend(kLamb)); }

TEST(ReferenceSteps, GradientIsMultipliedByTheClip) {
  const auto backend = make_reference_backend(kOptions);
  for (OpKind kind : kSteps) {
    NodeSpec spec = step_spec(kind);
    const OneNode one = build(spec);
    spec.clips = true;
    const OneNode clipped = build(spec);
    const Plain plain = random_plain(clipped, kContext, 1);
    Plain smaller = plain;
    for (float& value : smaller.at("dw")) value *= kClipFactor;
    EXPECT_EQ(run_node(*backend, clipped, kContext, plain), run_node(*backend, one, kContext, smaller));
    EXPECT_NE(run_node(*backend, clipped, kContext, plain), run_node(*backend, one, kContext, plain));
  }
}

TEST(ReferenceSteps, RateFallsWithTheDistanceFromTheHead) {
  OptimizerOptions options = kOptions;
  options.layer_decay = 0.5f;
  const auto decaying = make_reference_backend(options), plain_backend = make_reference_backend(kOptions);
  for (OpKind kind : kSteps) {
    OneNode one = build(step_spec(kind));
    one.graph.params[0].depth = 3;
    one.graph.params.push_back({"head", {2}, graph::ParamRole::Weight, {}, 5});
    const Plain plain = random_plain(one, kContext, 1);
    StepContext slower = kContext;
    slower.learning_rate *= 0.25f;
    EXPECT_EQ(run_node(*decaying, one, kContext, plain), run_node(*plain_backend, one, slower, plain));
  }
}

TEST(ReferenceSteps, GradientSumIsClearedForTheNextStep) {
  const auto backend = make_reference_backend(kOptions);
  for (OpKind kind : kSteps) {
    NodeSpec spec = step_spec(kind);
    const Plain plain = random_plain(build(spec), kContext, 1);
    Plain results = run_node(*backend, build(spec), kContext, plain);
    spec.gradient_sum = true;
    results["dw"] = std::vector<float>(15, 0.0f);
    EXPECT_EQ(run_node(*backend, build(spec), kContext, plain), results);
  }
}

TEST(ReferenceSteps, WriteTheNextVersionAndLeaveTheOldOne) {
  const auto backend = make_reference_backend(kOptions);
  for (OpKind kind : kSteps) {
    NodeSpec spec = step_spec(kind);
    const Plain plain = random_plain(build(spec), kContext, 1);
    const Plain in_place = run_node(*backend, build(spec), kContext, plain);
    spec.next_version = true;
    EXPECT_EQ(run_node(*backend, build(spec), kContext, plain).at("new w"), in_place.at("w"));
  }
}

TEST(ReferenceAgreement, ClipFollowsTorch) {
  expect_torch_clipping(*make_reference_backend({.clip_norm = kGoldenClipNorm}));
}

TEST(ReferenceAgreement, SquareGoesToTheParametersPlace) {
  const auto backend = make_reference_backend({});
  for (bool counts : {true, false}) {
    const OneNode one =
        build({.kind = OpKind::SumSquares, .pass = Pass::Update, .x = {3}, .attrs = graph::SquaresAttrs{counts}});
    Plain plain{{"dw", {1, -2, 0.5f}}, {"agreement", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}};
    std::vector<float> expected = plain.at("agreement");
    expected[graph::kSquares + 1] = counts ? 5.25f : 0;
    EXPECT_EQ(run_node(*backend, one, {}, plain).at("agreement"), expected) << "the other places are other stages'";
  }
}

}  // namespace
}  // namespace millrace::backend::harness
