// Values over tokens: embeddings, positions, images as tokens, and one token of several.
#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using graph::EmbeddingAttrs;
using graph::SelectTokenAttrs;

class CudaTokens : public CudaKernels {
 protected:
  static constexpr int kShapes = 24;
  static int64_t random_width(Dice& dice) { return dice.pick({1, 3, 16, 17, 64, 768}); }
  static int64_t random_length(Dice& dice) { return dice.coin() ? dice.between(2, 40) : dice.pick({1, 7}); }

  void expect_passes_agree(NodeSpec spec, const StepContext& context, std::initializer_list<Pass> passes) {
    SCOPED_TRACE(testing::Message() << "table " << spec.table.str());
    for (Pass pass : passes) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
  // A gradient that is kept for a sum over replicas: in 32 bits, the numbers that one worker has in sixteen.
  void expect_shared_gradient_is_rounded(NodeSpec spec) {
    spec.pass = Pass::WeightGrad;
    for (DType dtype : {DType::F16, DType::BF16}) {
      spec.dtype = dtype;
      const OneNode one = build_as_emitted(spec);
      OneNode shared = one;
      shared.program.buffers[shared.node().writes[0]].dtype = DType::F32;
      const Plain plain = random_rounded(one, {.rows = spec.x[0]}, ++seed_);
      EXPECT_EQ(run_on_dirty_memory(*cuda_, one, {.rows = spec.x[0]}, plain),
                run_on_dirty_memory(*cuda_, shared, {.rows = spec.x[0]}, plain))
          << graph::name_of(spec.kind) << " in " << name_of(dtype);
    }
  }
};

TEST_F(CudaTokens, EmbeddingAgreesWithReference) {
  Dice dice(81);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    const int64_t batch = dice.between(1, 5), length = random_length(dice);
    NodeSpec spec{.kind = OpKind::Embedding, .x = {batch, length}, .attrs = EmbeddingAttrs{}};
    if (dice.coin()) {
      spec.x = {batch, 2, length};
      spec.attrs = EmbeddingAttrs{dice.small(0, 1)};
    }
    spec.table = {dice.pick({1, 2, 8, 100, 257}), random_width(dice)};
    expect_passes_agree(spec, dice.context(batch), {Pass::Forward, Pass::Evaluate, Pass::WeightGrad});
  }
}

// More places than a block ranks, runs over many chunks, and chunks of many runs.
TEST_F(CudaTokens, EmbeddingOfManyTokensAgreesWithReference) {
  for (const Shape& tokens : {Shape{4, 64}, Shape{4, 257}, Shape{8, 512}, Shape{3, 2, 1000}}) {
    for (const Shape& table : {Shape{2, 64}, Shape{33, 17}, Shape{50257, 24}}) {
      const EmbeddingAttrs attrs{tokens.rank() == 3 ? 1 : 0};
      const NodeSpec spec{.kind = OpKind::Embedding, .x = tokens, .attrs = attrs, .table = table};
      expect_passes_agree(spec, {.rows = tokens[0]}, {Pass::Forward, Pass::WeightGrad});
    }
  }
}

TEST_F(CudaTokens, EmbeddingGradientHasTheSameBitsEveryTime) {
  const OneNode one = build_as_emitted({.kind = OpKind::Embedding,
                                        .pass = Pass::WeightGrad,
                                        .x = {4, 700},
                                        .attrs = EmbeddingAttrs{},
                                        .table = {9, 40}});
  const Plain plain = random_plain(one, {.rows = 4}, 5);
  const Plain first = run_node(*cuda_, one, {.rows = 4}, plain);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(first, run_node(*cuda_, one, {.rows = 4}, plain));
}

TEST_F(CudaTokens, NoTokenAtAllHasNoGradient) {
  const OneNode one = build_as_emitted(
      {.kind = OpKind::Embedding, .pass = Pass::WeightGrad, .x = {2, 50}, .attrs = EmbeddingAttrs{}, .table = {3, 8}});
  const Plain plain{{"dy", std::vector<float>(800, 1)}, {"tokens", std::vector<float>(100, -1)}};
  EXPECT_EQ(run_on_dirty_memory(*cuda_, one, {.rows = 2}, plain).at("dw"), std::vector<float>(24, 0));
}

TEST_F(CudaTokens, ATokenBeyondTheTableIsNaN) {
  for (DType dtype : kTypes) {
    for (int64_t width : {1, 8}) {
      const OneNode one = build_as_emitted(
          {.kind = OpKind::Embedding, .x = {1, 3}, .attrs = EmbeddingAttrs{}, .table = {2, width}, .dtype = dtype});
      const Plain plain{{"w", std::vector<float>(2 * width, 1)}, {"tokens", {1, 2, -1}}};
      const std::vector<float> y = run_node(*cuda_, one, {.rows = 1}, plain).at("y");
      for (int64_t d = 0; d < width; ++d) {
        EXPECT_EQ(y[d], 1);
        EXPECT_TRUE(std::isnan(y[width + d]));
        EXPECT_EQ(y[2 * width + d], 0);
      }
    }
  }
}

TEST_F(CudaTokens, PositionsAgreeWithReference) {
  Dice dice(82);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    const int64_t batch = i % 6 == 0 ? 37 : dice.between(1, 5);
    NodeSpec spec{.kind = OpKind::Positions, .x = {batch, random_length(dice), random_width(dice)}};
    spec.table = {spec.x[1] + dice.pick({0, 1, 9}), spec.x[2]};
    const StepContext context = dice.context(spec.x[0]);
    expect_agrees_in_place(spec, context, {{0, 0}});
    expect_passes_agree(spec, context, {Pass::Evaluate, Pass::WeightGrad});
  }
}

TEST_F(CudaTokens, ImageTokensAgreeWithReference) {
  Dice dice(83);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::ImageTokens, .x = dice.images(random_width(dice), 1, 9)};
    if (i % 6 == 0) spec.x = {37, spec.x[1], 2, 3};
    expect_passes_agree(spec, dice.context(spec.x[0]),
                        {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad});
  }
}

TEST_F(CudaTokens, SelectTokenAgreesWithReference) {
  Dice dice(84);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::SelectToken, .x = {dice.between(1, 5), random_length(dice), random_width(dice)}};
    spec.attrs = SelectTokenAttrs{dice.small(0, static_cast<int>(spec.x[1]) - 1)};
    expect_passes_agree(spec, dice.context(spec.x[0]), {Pass::Forward, Pass::Evaluate, Pass::InputGrad});
  }
}

TEST_F(CudaTokens, SharedGradientsAreRoundedAsThoseOfOneWorker) {
  for (int64_t width : {17, 64}) {
    const NodeSpec words{.kind = OpKind::Embedding, .x = {4, 70}, .attrs = EmbeddingAttrs{}, .table = {5, width}};
    expect_shared_gradient_is_rounded(words);
    expect_shared_gradient_is_rounded({.kind = OpKind::Positions, .x = {19, 5, width}, .table = {6, width}});
    expect_shared_gradient_is_rounded({.kind = OpKind::ImageTokens, .x = {19, width, 2, 2}});
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
