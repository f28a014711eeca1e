#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

class CudaAttention : public CudaKernels {
 protected:
  // Numbers that fit together: what backward reads is what the reference's forward made. Scores are spread out, so
  // that weights differ.
  Plain numbers_for(const OneNode& one, NodeSpec spec, const StepContext& context, uint64_t seed) {
    Plain plain = random_rounded(one, context, seed);
    for (float& value : plain.at("qkv")) value = rounded(3 * value, spec.dtype);
    if (spec.pass != Pass::InputGrad) return plain;
    spec.pass = Pass::Forward;
    const OneNode forward = with_planes(build_for_reference(spec), buffer_planes(one));
    for (auto& [name, values] : run_node(*reference_, forward, context, plain)) plain[name] = values;
    for (float& value : plain.at("y")) value = rounded(value, spec.dtype);
    return plain;
  }

  static int64_t buffer_planes(const OneNode& one) {
    for (const graph::Buffer& buffer : one.program.buffers) {
      if (buffer.name == "tokens" && buffer.shape.rank() == 3) return buffer.shape[1];
    }
    return 0;
  }
  static OneNode with_planes(OneNode one, int64_t planes) {
    for (graph::Buffer& buffer : one.program.buffers) {
      if (buffer.name == "tokens" && planes > 0) buffer.shape = {buffer.shape[0], planes, buffer.shape[1]};
    }
    return one;
  }

  void expect_attention_agrees(NodeSpec spec, const StepContext& context, int64_t planes = 0) {
    const auto& attrs = std::get<graph::AttentionAttrs>(spec.attrs);
    ++seed_;
    for (DType dtype : kTypes) {
      for (Pass pass : {Pass::Forward, Pass::Evaluate, Pass::InputGrad}) {
        spec.pass = pass;
        spec.dtype = dtype;
        SCOPED_TRACE(testing::Message() << graph::name_of(pass) << " in " << name_of(dtype) << " of qkv "
                                        << spec.x.str() << ", heads " << attrs.heads << ", causal " << attrs.causal
                                        << ", dropout " << attrs.dropout << ", masked " << spec.masked << ", planes "
                                        << planes);
        const OneNode one = with_planes(build_as_emitted(spec), planes);
        const Plain plain = numbers_for(one, spec, context, seed_);
        const Plain expected = run_node(*reference_, with_planes(build_for_reference(spec), planes), context, plain);
        expect_close_in_norm(one, context, expected, run_on_dirty_memory(*cuda_, one, context, plain),
                             tolerance_of(dtype));
      }
    }
  }
};

TEST_F(CudaAttention, AgreesWithReference) {
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

// Every width that has a kernel of its own, and widths that fill one up with zeros.
TEST_F(CudaAttention, AgreesWithReferenceOnAllWidths) {
  for (int64_t width : {2, 16, 24, 32, 48, 64, 80, 96, 120, 128, 136, 200, 256}) {
    for (const bool causal : {false, true}) {
      if (HasFailure()) return;
      const NodeSpec spec{.kind = OpKind::Attention,
                          .x = {1, 70, 3 * 2 * width},
                          .attrs = graph::AttentionAttrs{2, causal, 0.25},
                          .masked = true};
      expect_attention_agrees(spec, {.seed = 5, .step = 7, .first_row = 3, .rows = 1});
    }
  }
}

TEST_F(CudaAttention, AgreesWithReferenceOnVisionTransformersAndLanguageModels) {
  NodeSpec spec{.kind = OpKind::Attention, .x = {1, 197, 3 * 12 * 64}, .attrs = graph::AttentionAttrs{12}};
  expect_attention_agrees(spec, {.rows = 1});
  spec = {
      .kind = OpKind::Attention, .x = {2, 128, 3 * 64}, .attrs = graph::AttentionAttrs{1, true, 0.1}, .masked = true};
  expect_attention_agrees(spec, {.seed = 5, .rows = 2});
}

// More than one tile on both sides, and every reason not to see a key or not to keep a weight.
TEST_F(CudaAttention, AgreesWithReferenceOnManyTiles) {
  for (int64_t length : {129, 300}) {
    for (const bool causal : {false, true}) {
      for (const bool masked : {false, true}) {
        for (const double dropout : {0.0, 0.1}) {
          if (HasFailure()) return;
          const NodeSpec spec{.kind = OpKind::Attention,
                              .x = {1, length, 3 * 2 * 64},
                              .attrs = graph::AttentionAttrs{2, causal, dropout},
                              .masked = masked};
          expect_attention_agrees(spec, {.seed = 5, .step = 7, .first_row = 3, .rows = 1});
        }
      }
    }
  }
}

// Of a sample that is all padding nothing is seen, and nothing it makes may poison a sum.
TEST_F(CudaAttention, SampleWithoutTokensGetsZeros) {
  for (DType dtype : kTypes) {
    for (const double dropout : {0.0, 0.1}) {
      for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
        const NodeSpec spec{.kind = OpKind::Attention,
                            .pass = pass,
                            .x = {2, 100, 3 * 64},
                            .attrs = graph::AttentionAttrs{1, true, dropout},
                            .masked = true,
                            .dtype = dtype};
        const StepContext context{.seed = 9, .step = 2, .rows = 2};
        const OneNode one = build_as_emitted(spec);
        Plain plain = random_rounded(one, context, 1);
        for (float& token : plain.at("tokens")) token = -1;
        for (float& value : plain.at("qkv")) value = rounded(100 * value, dtype);
        if (pass == Pass::InputGrad) {
          for (const char* name : {"y", "saved"}) plain.at(name).assign(plain.at(name).size(), 0.0f);
        }
        for (const auto& [name, values] : run_node(*cuda_, one, context, plain)) {
          EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f))
              << name << " in " << name_of(dtype) << ", dropout " << dropout;
        }
      }
    }
  }
}

// With what cuDNN adds in whatever order it comes (no dropout, no padding) only where it was asked for.
TEST_F(CudaAttention, HasTheSameBitsEveryTime) {
  cuda_ = make_cuda_backend({.deterministic = true}, {});
  for (DType dtype : kTypes) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
      for (const bool plain_one : {false, true}) {
        const NodeSpec spec{.kind = OpKind::Attention,
                            .pass = pass,
                            .x = {3, 197, 3 * 3 * 64},
                            .attrs = graph::AttentionAttrs{3, true, plain_one ? 0 : 0.2},
                            .masked = !plain_one,
                            .dtype = dtype};
        const StepContext context{.seed = 9, .step = 2, .rows = 3};
        const OneNode one = build_as_emitted(spec);
        const Plain plain = numbers_for(one, spec, context, 1);
        const Plain once = run_node(*cuda_, one, context, plain);
        EXPECT_EQ(once, run_node(*cuda_, one, context, plain)) << name_of(dtype) << " " << graph::name_of(pass);
      }
    }
  }
}

// Everything a task does is on the stream, whichever kernels it has.
TEST_F(CudaAttention, CanBeRecorded) {
  for (const double dropout : {0.0, 0.2}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad}) {
      const NodeSpec spec{.kind = OpKind::Attention,
                          .pass = pass,
                          .x = {2, 100, 3 * 2 * 64},
                          .attrs = graph::AttentionAttrs{2, true, dropout},
                          .dtype = DType::BF16};
      const StepContext context{.seed = 9, .step = 2, .rows = 2};
      const OneNode one = build_as_emitted(spec);
      const Plain plain = numbers_for(one, spec, context, 1);
      NodeRun run(*cuda_, one);
      const Kernel kernel = cuda_->prepare(one.view());
      Bindings at;
      for (BufferId id : one.node().reads) at.reads.push_back(run.memory(id));
      for (BufferId id : one.node().writes) at.writes.push_back(run.memory(id));
      at.scratch = cuda_->allocate(std::max<size_t>(kernel.scratch_bytes, 1));
      const Task task = kernel.bind(at);
      run.fill(plain);
      cuda_->begin(context);
      cuda_->begin_recording();
      task(context);
      const std::shared_ptr<const void> recording = cuda_->end_recording();
      for (int times = 0; times < 2; ++times) cuda_->play(recording.get());
      cuda_->wait();
      expect_close_in_norm(one, context, run_node(*cuda_, one, context, plain), run.results(), 1e-2);
      cuda_->release(at.scratch, std::max<size_t>(kernel.scratch_bytes, 1));
    }
  }
}

// A task that was bound under one step runs under another: what it draws must follow the device's context.
TEST_F(CudaAttention, DropoutFollowsTheStep) {
  const NodeSpec spec{.kind = OpKind::Attention, .x = {1, 40, 3 * 16}, .attrs = graph::AttentionAttrs{1, false, 0.5}};
  const OneNode one = build_as_emitted(spec);
  const Plain plain = random_plain(one, {.rows = 1}, 1);
  NodeRun run(*cuda_, one);
  run.fill(plain);
  run.run({.seed = 1, .step = 1, .rows = 1});
  const Plain first = run.results();
  run.run({.seed = 1, .step = 2, .rows = 1});
  EXPECT_NE(first.at("y"), run.results().at("y"));
  EXPECT_EQ(first.at("saved"), run.results().at("saved"));
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
