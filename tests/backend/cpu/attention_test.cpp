#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

class CpuAttention : public CpuKernels {
 protected:
  // Numbers that fit together: what backward reads is what the reference's forward made. Scores are spread out, so
  // that weights differ.
  Plain numbers_for(const OneNode& one, NodeSpec spec, const StepContext& context) {
    Plain plain = random_plain(one, context, ++seed_);
    for (float& value : plain.at("qkv")) value *= 3;
    if (spec.pass != Pass::InputGrad) return plain;
    spec.pass = Pass::Forward;
    OneNode forward = build_as_emitted(spec);
    for (graph::Buffer& buffer : forward.program.buffers) {
      if (buffer.name == "tokens") buffer.shape = buffer_shape(one, "tokens");
    }
    for (auto& [name, values] : run_node(*reference_, forward, context, plain)) plain[name] = values;
    return plain;
  }

  void expect_attention_agrees(NodeSpec spec, const StepContext& context, int64_t planes = 0) {
    const auto& attrs = std::get<graph::AttentionAttrs>(spec.attrs);
    for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
      spec.pass = pass;
      SCOPED_TRACE(testing::Message() << graph::name_of(pass) << " of qkv " << spec.x.str() << ", heads " << attrs.heads
                                      << ", causal " << attrs.causal << ", dropout " << attrs.dropout << ", masked "
                                      << spec.masked << ", planes " << planes);
      OneNode one = build_as_emitted(spec);
      for (graph::Buffer& buffer : one.program.buffers) {
        if (buffer.name == "tokens" && planes > 0) buffer.shape = {spec.x[0], planes, spec.x[1]};
      }
      const Plain plain = numbers_for(one, spec, context);
      expect_close(one, context, run_node(*reference_, one, context, plain),
                   run_on_dirty_memory(*cpu_, one, context, plain), tolerance_);
    }
  }
};

TEST_F(CpuAttention, AgreesWithReference) {
  Dice dice(83);
  for (int i = 0; i < 40 && !HasFailure(); ++i) {
    const int64_t heads = dice.pick({1, 2, 3}), width = dice.pick({1, 8, 16, 33, 64});
    const int64_t length = dice.pick({1, 3, 16, 17, 64, 100});
    const graph::AttentionAttrs attrs{static_cast<int>(heads), dice.coin(), dice.coin() ? 0.3 : 0.0};
    const NodeSpec spec{.kind = OpKind::Attention,
                        .x = {dice.between(1, 2), length, 3 * heads * width},
                        .attrs = attrs,
                        .masked = dice.coin()};
    expect_attention_agrees(spec, dice.context(spec.x[0]), dice.pick({0, 0, 2}));
  }
}

TEST_F(CpuAttention, AgreesWithReferenceOnVisionTransformersAndLanguageModels) {
  NodeSpec spec{.kind = OpKind::Attention, .x = {1, 197, 3 * 12 * 64}, .attrs = graph::AttentionAttrs{12}};
  expect_attention_agrees(spec, {.rows = 1});
  spec = {
      .kind = OpKind::Attention, .x = {1, 128, 3 * 64}, .attrs = graph::AttentionAttrs{1, true, 0.1}, .masked = true};
  expect_attention_agrees(spec, {.seed = 5, .rows = 1});
}

TEST_F(CpuAttention, HasTheSameBitsWithAnyNumberOfThreads) {
  for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
    const NodeSpec spec{.kind = OpKind::Attention,
                        .pass = pass,
                        .x = {2, 100, 3 * 3 * 33},
                        .attrs = graph::AttentionAttrs{3, true, 0.2},
                        .masked = true};
    const StepContext context{.seed = 9, .step = 2, .rows = 2};
    const OneNode one = build_as_emitted(spec);
    const Plain plain = numbers_for(one, spec, context);
    const auto single = make_cpu_backend({.threads = 1}, {});
    const Plain alone = run_node(*single, one, context, plain);
    const auto several = make_cpu_backend({.threads = 4}, {});
    EXPECT_EQ(alone, run_node(*several, one, context, plain)) << graph::name_of(pass);
  }
}

// Large scores: exponentials are taken of what lies below the largest.
TEST_F(CpuAttention, LargeScoresStayFinite) {
  const NodeSpec spec{.kind = OpKind::Attention, .x = {1, 40, 3 * 16}, .attrs = graph::AttentionAttrs{1}};
  const OneNode one = build_as_emitted(spec);
  Plain plain = random_plain(one, {.rows = 1}, 1);
  for (float& value : plain.at("qkv")) value *= 60;
  expect_close(one, {.rows = 1}, run_node(*reference_, one, {.rows = 1}, plain),
               run_node(*cpu_, one, {.rows = 1}, plain), 1e-3);
}

}  // namespace
}  // namespace millrace::backend::harness
