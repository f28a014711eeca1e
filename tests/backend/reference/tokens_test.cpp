// Values over tokens: embeddings, positions, images as tokens, and one token of several.
#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

using graph::EmbeddingAttrs;
using graph::SelectTokenAttrs;
using testing::Test;

class ReferenceTokens : public Test {
 protected:
  Plain run(const NodeSpec& spec, const Plain& plain) {
    return run_node(*backend_, build(spec), {.rows = spec.x[0]}, plain);
  }
  std::unique_ptr<Backend> backend_ = make_reference_backend({});
};

TEST_F(ReferenceTokens, EmbeddingGradientMatchesFiniteDifferences) {
  for (const Shape& tokens : {Shape{3, 4}, Shape{2, 1}, Shape{3, 2, 5}}) {
    for (int plane = 0; plane < (tokens.rank() == 3 ? 2 : 1); ++plane) {
      for (const Shape& table : {Shape{5, 3}, Shape{1, 1}}) {
        const NodeSpec spec{.kind = OpKind::Embedding, .x = tokens, .attrs = EmbeddingAttrs{plane}, .table = table};
        expect_gradient_matches(spec, Pass::WeightGrad, {.rows = tokens[0]});
      }
    }
  }
}

TEST_F(ReferenceTokens, EmbeddingTakesTheRowThatATokenNames) {
  const NodeSpec spec{.kind = OpKind::Embedding, .x = {2, 3}, .attrs = EmbeddingAttrs{}, .table = {2, 2}};
  const Plain plain{{"w", {1, 2, 30, 40}}, {"tokens", {1, 0, -1, 0, -7, 1}}};
  EXPECT_EQ(run(spec, plain).at("y"), (std::vector<float>{30, 40, 1, 2, 0, 0, 1, 2, 0, 0, 30, 40}));
}

TEST_F(ReferenceTokens, EmbeddingReadsOnePlane) {
  NodeSpec spec{.kind = OpKind::Embedding, .x = {2, 2, 2}, .attrs = EmbeddingAttrs{1}, .table = {3, 1}};
  const std::vector<float> tokens{9, 9, 1, 2, 9, 9, 2, -1};  // the other plane has numbers that this table has not
  EXPECT_EQ(run(spec, {{"w", {10, 20, 30}}, {"tokens", tokens}}).at("y"), (std::vector<float>{20, 30, 30, 0}));
  spec.pass = Pass::WeightGrad;
  EXPECT_EQ(run(spec, {{"dy", {1, 2, 4, 8}}, {"tokens", tokens}}).at("dw"), (std::vector<float>{0, 1, 6}));
}

TEST_F(ReferenceTokens, ATokenBeyondTheTableIsRefused) {
  const NodeSpec spec{
      .kind = OpKind::Embedding, .x = {1, 2}, .attrs = EmbeddingAttrs{}, .table = {2, 1}, .name = "words"};
  try {
    run(spec, {{"w", {1, 2}}, {"tokens", {0, 5}}});
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "words: token 5, the table has 2 entries");
  }
}

TEST_F(ReferenceTokens, PositionsGradientMatchesFiniteDifferences) {
  for (int64_t places : {4, 6}) {
    expect_gradient_matches({.kind = OpKind::Positions, .x = {3, 4, 5}, .table = {places, 5}}, Pass::WeightGrad,
                            {.rows = 3});
  }
}

TEST_F(ReferenceTokens, PositionsAreAddedToEverySample) {
  NodeSpec spec{.kind = OpKind::Positions, .x = {2, 2, 1}, .table = {3, 1}};
  EXPECT_EQ(run(spec, {{"x", {1, 2, 3, 4}}, {"w", {10, 20, 30}}}).at("y"), (std::vector<float>{11, 22, 13, 24}));
  spec.in_place = {{0, 0}};
  EXPECT_EQ(run(spec, {{"x", {1, 2, 3, 4}}, {"w", {10, 20, 30}}}).at("y"), (std::vector<float>{11, 22, 13, 24}));
  spec.in_place.clear();
  spec.pass = Pass::WeightGrad;
  EXPECT_EQ(run(spec, {{"dy", {1, 2, 3, 4}}}).at("dw"), (std::vector<float>{4, 6, 0}));
}

TEST_F(ReferenceTokens, ImageTokensGradientsMatchFiniteDifferences) {
  const NodeSpec spec{.kind = OpKind::ImageTokens, .x = {2, 3, 2, 4}};
  expect_gradient_matches(spec, Pass::InputGrad, {.rows = 2});
  expect_gradient_matches(spec, Pass::WeightGrad, {.rows = 2});
}

TEST_F(ReferenceTokens, PixelsFollowTheFirstTokenRowByRow) {
  const NodeSpec spec{.kind = OpKind::ImageTokens, .x = {1, 2, 2, 2}};
  const Plain plain{{"x", {1, 2, 3, 4, 10, 20, 30, 40}}, {"w", {-1, -2}}};
  EXPECT_EQ(run(spec, plain).at("y"), (std::vector<float>{-1, -2, 1, 10, 2, 20, 3, 30, 4, 40}));
}

TEST_F(ReferenceTokens, SelectTokenGradientMatchesFiniteDifferences) {
  for (int index : {0, 3}) {
    expect_gradient_matches({.kind = OpKind::SelectToken, .x = {3, 4, 5}, .attrs = SelectTokenAttrs{index}},
                            Pass::InputGrad, {.rows = 3});
  }
}

TEST_F(ReferenceTokens, SelectTokenTakesOneOfEachSample) {
  NodeSpec spec{.kind = OpKind::SelectToken, .x = {2, 2, 2}, .attrs = SelectTokenAttrs{1}};
  EXPECT_EQ(run(spec, {{"x", {1, 2, 3, 4, 5, 6, 7, 8}}}).at("y"), (std::vector<float>{3, 4, 7, 8}));
  spec.pass = Pass::InputGrad;
  EXPECT_EQ(run(spec, {{"dy", {1, 2, 3, 4}}}).at("dx"), (std::vector<float>{0, 0, 1, 2, 0, 0, 3, 4}));
}

}  // namespace
}  // namespace millrace::backend::harness
