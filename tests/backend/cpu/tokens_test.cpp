// Values over tokens: embeddings, positions, images as tokens, and one token of several.
#include "backend/cpu/cpu_harness.h"

namespace millrace::backend::harness {
namespace {

using graph::EmbeddingAttrs;
using graph::SelectTokenAttrs;

class CpuTokens : public CpuKernels {
 protected:
  static constexpr int kShapes = 24;
  static int64_t random_width(Dice& dice) { return dice.pick({1, 3, 16, 17, 64, 768}); }
  static int64_t random_length(Dice& dice) { return dice.coin() ? dice.between(2, 40) : dice.pick({1, 7}); }

  void expect_passes_agree(NodeSpec spec, const StepContext& context, std::initializer_list<Pass> passes) {
    for (Pass pass : passes) {
      spec.pass = pass;
      expect_agrees(spec, context);
    }
  }
  // Sums in one order, whoever makes them.
  void expect_same_bits_for_any_number_of_threads(const NodeSpec& spec) {
    const OneNode one = build_as_emitted(spec);
    const Plain plain = random_plain(one, {.rows = spec.x[0]}, ++seed_);
    const Plain alone = run_node(*make_cpu_backend({.threads = 1}, {}), one, {.rows = spec.x[0]}, plain);
    for (int threads : {2, 3, 7}) {
      SCOPED_TRACE(testing::Message() << threads << " threads");
      EXPECT_EQ(alone, run_node(*make_cpu_backend({.threads = threads}, {}), one, {.rows = spec.x[0]}, plain));
    }
    cpu_ = make_cpu();  // with its own number of threads again
  }
};

TEST_F(CpuTokens, EmbeddingAgreesWithReference) {
  Dice dice(81);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    const int64_t batch = dice.between(1, 5), length = random_length(dice);
    NodeSpec spec{.kind = OpKind::Embedding, .x = {batch, length}, .attrs = EmbeddingAttrs{}};
    if (dice.coin()) {
      spec.x = {batch, 2, length};
      spec.attrs = EmbeddingAttrs{dice.small(0, 1)};
    }
    spec.table = {dice.pick({1, 2, 8, 100, 257}), random_width(dice)};
    SCOPED_TRACE(testing::Message() << "table " << spec.table.str());
    expect_passes_agree(spec, dice.context(batch), {Pass::Forward, Pass::Evaluate, Pass::WeightGrad});
  }
}

TEST_F(CpuTokens, ATokenBeyondTheTableIsRefused) {
  const NodeSpec spec{
      .kind = OpKind::Embedding, .x = {1, 2, 2}, .attrs = EmbeddingAttrs{1}, .table = {2, 1}, .name = "words"};
  const OneNode one = build(spec);
  EXPECT_NO_THROW(run_node(*cpu_, one, {.rows = 1}, {{"w", {1, 2}}, {"tokens", {5, 5, 0, 1}}}));
  try {
    run_node(*cpu_, one, {.rows = 1}, {{"w", {1, 2}}, {"tokens", {0, 0, 0, 5}}});
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "words: token 5, the table has 2 entries");
  }
}

TEST_F(CpuTokens, PositionsAgreeWithReference) {
  Dice dice(82);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::Positions, .x = {dice.between(1, 5), random_length(dice), random_width(dice)}};
    spec.table = {spec.x[1] + dice.pick({0, 1, 9}), spec.x[2]};
    const StepContext context = dice.context(spec.x[0]);
    expect_agrees_in_place(spec, context, {{0, 0}});
    expect_passes_agree(spec, context, {Pass::Evaluate, Pass::WeightGrad});
  }
}

TEST_F(CpuTokens, ImageTokensAgreeWithReference) {
  Dice dice(83);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    const NodeSpec spec{.kind = OpKind::ImageTokens, .x = dice.images(random_width(dice), 1, 9)};
    expect_passes_agree(spec, dice.context(spec.x[0]),
                        {Pass::Forward, Pass::Evaluate, Pass::InputGrad, Pass::WeightGrad});
  }
}

TEST_F(CpuTokens, SelectTokenAgreesWithReference) {
  Dice dice(84);
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    NodeSpec spec{.kind = OpKind::SelectToken, .x = {dice.between(1, 5), random_length(dice), random_width(dice)}};
    spec.attrs = SelectTokenAttrs{dice.small(0, static_cast<int>(spec.x[1]) - 1)};
    expect_passes_agree(spec, dice.context(spec.x[0]), {Pass::Forward, Pass::Evaluate, Pass::InputGrad});
  }
}

TEST_F(CpuTokens, GradientsHaveTheSameBitsForAnyNumberOfThreads) {
  for (int64_t width : {1, 17, 100}) {
    const NodeSpec words{.kind = OpKind::Embedding,
                         .pass = Pass::WeightGrad,
                         .x = {5, 61},
                         .attrs = EmbeddingAttrs{},
                         .table = {7, width}};
    expect_same_bits_for_any_number_of_threads(words);
    expect_same_bits_for_any_number_of_threads(
        {.kind = OpKind::Positions, .pass = Pass::WeightGrad, .x = {19, 5, width}, .table = {6, width}});
    expect_same_bits_for_any_number_of_threads(
        {.kind = OpKind::ImageTokens, .pass = Pass::WeightGrad, .x = {19, width, 2, 2}});
  }
}

}  // namespace
}  // namespace millrace::backend::harness
