#include "backend/reference/finite_differences.h"
#include "millrace/backend/dropout_mask.h"

namespace millrace::backend::harness {
namespace {

using graph::AttentionAttrs;

NodeSpec attention(const Shape& x, const AttentionAttrs& attrs, bool masked = false, Pass pass = Pass::Forward) {
  return {.kind = OpKind::Attention, .pass = pass, .x = x, .attrs = attrs, .masked = masked};
}

TEST(ReferenceAttention, InputGradMatchesFiniteDifferences) {
  const StepContext context{.seed = 7, .step = 3, .first_row = 6, .rows = 2};
  for (const bool causal : {false, true}) {
    for (const bool masked : {false, true}) {
      for (const double dropout : {0.0, 0.3}) {
        SCOPED_TRACE(testing::Message() << "causal " << causal << ", masked " << masked << ", dropout " << dropout);
        expect_gradient_matches(attention({2, 5, 12}, {2, causal, dropout}, masked), Pass::InputGrad, context);
        expect_gradient_matches(attention({2, 4, 9}, {1, causal, dropout}, masked), Pass::InputGrad, context);
        expect_gradient_matches(attention({1, 3, 9}, {3, causal, dropout}, masked), Pass::InputGrad, context);
        expect_gradient_matches(attention({1, 1, 6}, {1, causal, dropout}, masked), Pass::InputGrad, context);
      }
    }
  }
}

std::vector<float> numbers(int count, int step, int range) {
  std::vector<float> values;
  for (int k = 0; k < count; ++k) values.push_back(static_cast<float>(k * step % range - range / 2) / 8);
  return values;
}

void expect_near_all(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << "element " << i;
}

struct Golden {
  bool causal, masked;
  std::vector<float> y, saved, dqkv;
};

// PyTorch 1.13 in double: (q k^T / sqrt(2)) with masked_fill(-inf), softmax, times v, and autograd.
const std::vector<Golden> kGolden{
    {false,
     false,
     {-0.09634884, 0.1947952,  0.1248572,  -0.8366322, 0.292847,    -0.6947952, -0.1593693,  -0.324119,
      0.05362363,  -0.2179327, -0.9480423, -0.4217702, -0.9241582,  -0.4233167, -0.03543088, 0.8395691,
      0.13803,     -0.7677727, -0.3154153, 0.5595847,  -0.09810121, -0.2790823, -1.082141,   -0.2071412},
     {1.119066, 1.450523, 1.140261, 1.221595, 1.171752, 1.645477, 1.65243, 1.252387, 1.156262, 1.073332, 1.249124,
      1.623257},
     {0.1979619,   -0.1642552, -0.1427794, -0.1622143,  0.06975518, 0.1392648,   -0.1786676,  0.1265693,  -0.8825181,
      -0.08137726, 0.9375231,  -0.4038648, 0.06057798,  -0.2079237, 0.210146,    0.4262958,   -0.1435583, 0.07818464,
      -0.06418357, -0.2370952, -0.2847788, 0.007981563, 0.5070239,  0.1818376,   -0.07462888, -0.1724942, -0.1893081,
      0.3355326,   0.07380316, -0.2174494, 0.2428511,   0.1105259,  -0.7077031,  0.0733957,   0.4304529,  -0.2779728,
      -0.04657453, -0.0393771, 0.06913596, -0.3194313,  0.1167776,  -0.4064988,  -0.09323299, 0.2438359,  0.5288602,
      -0.4547775,  -0.1835124, 0.516441,   0.1041971,   0.4443365,  0.006976945, -0.03697384, 0.02319726, -0.1747243,
      0.05572878,  -0.297964,  0.3237817,  0.3311417,   -0.5782194, 0.07612267,  0.08642728,  0.4130527,  -0.1269231,
      0.1683868,   -0.1399749, 0.5812231,  0.0375042,   0.05412811, 0.6473581,   -0.7513642,  -0.3632682, 0.1574363}},
    {true,
     true,
     {-0.125,     0.75,       -1.25,      -0.375,     -0.5482712, 0.3267288,  0.03297906, -1.059255,
      0.05362363, -0.2179327, -0.9480423, -0.4217702, -0.25,      0.625,      -1.375,     -0.5,
      -0.25,      0.625,      -1.375,     -0.5,       0.1369722,  -0.2595079, -1.282258,  -0.4072585},
     {0.6850097, 0.406752, 1.140261, -0.6187184, 0.5341035, 1.645477, -0.8507378, -0.2320194, 0.9705506, -0.7402524,
      -0.5634757, 1.504155},
     {0,           0,           0,           0,           -0.1160384, -0.1017675,  -0.03275298, 0.05873951,
      -1.468173,   -0.2134239,  1.240871,    0.2019584,   0.2022817,  -0.1078836,  -0.3127018,  0.5863159,
      0.03692173,  0.161105,    0.02430943,  -0.05367339, -0.3071265, 0.06387311,  0.5489563,   -0.6593719,
      -0.07462888, -0.1724942,  -0.1893081,  0.3355326,   0.07911663, -0.05933747, 0.008443543, -0.005066126,
      -0.09970055, 0.1495508,   0.08517312,  -0.04258656, 0,          0,           0,           0,
      0.2197268,   -0.08789071, -0.04122247, 0.03206192,  1.113028,   -0.5985913,  -1.125,      0.6837561,
      0,           0,           0,           0,           0,          0,           0,           0,
      0,           0,           0,           0,           0.3076175,  0.3076175,   -0.07328439, 0.03206192,
      -0.2197268,  0.08789071,  0.04122247,  -0.03206192, 0.3869722,  -0.2764087,  0,           0.06624395}},
};

TEST(ReferenceAttention, AgreesWithPyTorch) {
  const auto backend = make_reference_backend({});
  for (const Golden& golden : kGolden) {
    SCOPED_TRACE(testing::Message() << "causal and masked: " << golden.causal);
    const NodeSpec spec = attention({2, 3, 12}, {2, golden.causal}, golden.masked);
    Plain plain{{"qkv", numbers(72, 7, 23)}, {"tokens", {4, 1, 7, 2, -1, 3}}, {"dy", numbers(24, 5, 17)}};
    const Plain forward = run_node(*backend, build(spec), {.rows = 2}, plain);
    expect_near_all(forward.at("y"), golden.y);
    expect_near_all(forward.at("saved"), golden.saved);
    plain.insert(forward.begin(), forward.end());
    NodeSpec backward = spec;
    backward.pass = Pass::InputGrad;
    expect_near_all(run_node(*backend, build(backward), {.rows = 2}, plain).at("dqkv"), golden.dqkv);
  }
}

// Of the second sample; with causal, also the first query of the first.
TEST(ReferenceAttention, AQueryWithoutKeysMakesZeros) {
  const auto backend = make_reference_backend({});
  NodeSpec spec = attention({2, 2, 6}, {1, /*causal=*/true}, /*masked=*/true);
  Plain plain{{"qkv", numbers(24, 7, 23)}, {"tokens", {-1, 5, -1, -1}}, {"dy", numbers(8, 5, 17)}};
  const Plain forward = run_node(*backend, build(spec), {.rows = 2}, plain);
  const std::vector<float>&y = forward.at("y"), &qkv = plain.at("qkv");
  EXPECT_EQ(y, (std::vector<float>{0, 0, qkv[10], qkv[11], 0, 0, 0, 0}));
  EXPECT_EQ(forward.at("saved")[0], 0);
  EXPECT_EQ(forward.at("saved")[2], 0);
  plain.insert(forward.begin(), forward.end());
  spec.pass = Pass::InputGrad;
  const std::vector<float> dqkv = run_node(*backend, build(spec), {.rows = 2}, plain).at("dqkv");
  for (size_t i = 0; i < dqkv.size(); ++i) {
    const bool is_seen_value = i == 10 || i == 11;
    if (!is_seen_value) {
      EXPECT_NEAR(dqkv[i], 0, 1e-6) << "element " << i;
    }
  }
  EXPECT_FLOAT_EQ(dqkv[10], plain.at("dy")[2]);
}

// Equal weights, and values that are unit vectors: the output is the mask.
TEST(ReferenceAttention, DropoutFollowsTheElementRule) {
  constexpr int kRows = 2, kHeads = 2, kLength = 3;
  const auto backend = make_reference_backend({});
  std::vector<float> qkv(kRows * kLength * 3 * kHeads * kLength, 0.0f);
  for (int token = 0; token < kRows * kLength; ++token) {
    for (int h = 0; h < kHeads; ++h) qkv[((token * 3 + 2) * kHeads + h) * kLength + token % kLength] = 1;
  }
  NodeSpec spec = attention({kRows, kLength, 3 * kHeads * kLength}, {kHeads, false, 0.25});
  const StepContext context{.seed = 11, .step = 5, .first_row = 40, .rows = kRows};
  const std::vector<float> y = run_node(*backend, build(spec), context, {{"qkv", qkv}}).at("y");
  const DropoutMask mask("node", 0.25);
  for (int n = 0; n < kRows; ++n) {
    const RandomStream random = mask.row(context, n);
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kLength; ++i) {
        for (int j = 0; j < kLength; ++j) {
          const int e = (h * kLength + i) * kLength + j;
          const float want = mask.keeps(random.at(e / 4)[e % 4]) ? 1 / (0.75f * kLength) : 0;
          EXPECT_FLOAT_EQ(y[((n * kLength + i) * kHeads + h) * kLength + j], want) << n << " " << h << " " << i;
        }
      }
    }
  }
  spec.pass = Pass::Evaluate;
  const std::vector<float> evaluated = run_node(*backend, build(spec), context, {{"qkv", qkv}}).at("y");
  for (float each : evaluated) EXPECT_FLOAT_EQ(each, 1.0f / kLength);
}

TEST(ReferenceAttention, OfSeveralPlanesTheFirstSaysWhichKeysThereAre) {
  const auto backend = make_reference_backend({});
  const Shape x{2, 3, 6};
  const Plain plain{{"qkv", numbers(36, 7, 23)}, {"tokens", {1, -1, 2, -1, 1, 1}}};
  OneNode planes = build(attention(x, {1}, true));
  for (graph::Buffer& buffer : planes.program.buffers) {
    if (buffer.name == "tokens") buffer.shape = {2, 2, 3};
  }
  Plain with_planes = plain;
  with_planes["tokens"] = {1, -1, 2, -1, -1, -1, -1, 1, 1, 0, 0, 0};
  const StepContext context{.rows = 2};
  EXPECT_EQ(run_node(*backend, planes, context, with_planes),
            run_node(*backend, build(attention(x, {1}, true)), context, plain));
}

}  // namespace
}  // namespace millrace::backend::harness
