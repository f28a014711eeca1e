#include "backend/reference/finite_differences.h"
#include "millrace/backend/dropout_mask.h"

namespace millrace::backend::harness {
namespace {

std::vector<float> dropped_ones(const Shape& x, double probability, const StepContext& context,
                                const std::string& name = "drop") {
  const auto backend = make_reference_backend({});
  const OneNode one = build({.kind = OpKind::Dropout, .x = x, .attrs = graph::DropoutAttrs{probability}, .name = name});
  const Plain plain{{"x", std::vector<float>(x.elements(), 1)}};
  return run_node(*backend, one, context, plain).at("y");
}

TEST(ReferenceDropout, InputGradMatchesFiniteDifferences) {
  const graph::DropoutAttrs attrs{0.3};
  expect_gradient_matches({.kind = OpKind::Dropout, .x = {3, 5, 2, 3}, .attrs = attrs}, Pass::InputGrad,
                          {.seed = 7, .step = 3, .first_row = 6, .rows = 3});
}

TEST(ReferenceDropout, MaskFollowsTheElementRule) {
  const StepContext context{.seed = 11, .step = 5, .first_row = 40, .rows = 3};
  const std::vector<float> y = dropped_ones({3, 2, 3, 3}, 0.25, context);
  for (int64_t r = 0; r < 3; ++r) {
    const RandomStream random(RandomStream::mix(11, hash_name("drop")), 5, 40 + r);
    for (int64_t e = 0; e < 18; ++e) {
      const bool keep = uniform(random.at(e / 4)[e % 4]) >= 0.25;
      EXPECT_FLOAT_EQ(y[r * 18 + e], keep ? 1 / 0.75f : 0) << "row " << r << ", element " << e;
    }
  }
}

// Pins the mask itself: training must not change because a hash or a generator did.
TEST(ReferenceDropout, MaskIsTheSameForEver) {
  const std::vector<float> y = dropped_ones({1, 16}, 0.5, {.seed = 1, .step = 2, .first_row = 3, .rows = 1});
  EXPECT_EQ(y, (std::vector<float>{0, 2, 2, 0, 2, 0, 0, 0, 2, 2, 2, 2, 2, 0, 0, 0}));
}

TEST(ReferenceDropout, PartitionOfTheBatchDoesNotChangeTheMask) {
  const StepContext whole{.seed = 1, .step = 2, .first_row = 0, .rows = 4};
  const StepContext second_half{.seed = 1, .step = 2, .first_row = 2, .rows = 2};
  const std::vector<float> all = dropped_ones({4, 37}, 0.5, whole);
  EXPECT_EQ(dropped_ones({2, 37}, 0.5, second_half), std::vector<float>(all.begin() + 2 * 37, all.end()));
}

TEST(ReferenceDropout, StepSeedAndNameEachChangeTheMask) {
  const StepContext context{.seed = 1, .step = 2, .rows = 1};
  const std::vector<float> y = dropped_ones({1, 64}, 0.5, context);
  EXPECT_NE(y, dropped_ones({1, 64}, 0.5, {.seed = 1, .step = 3, .rows = 1}));
  EXPECT_NE(y, dropped_ones({1, 64}, 0.5, {.seed = 2, .step = 2, .rows = 1}));
  EXPECT_NE(y, dropped_ones({1, 64}, 0.5, context, "other"));
}

TEST(ReferenceDropout, DropsItsShare) {
  const std::vector<float> y = dropped_ones({10, 1000}, 0.3, {.seed = 1, .rows = 10});
  const auto dropped = static_cast<double>(std::count(y.begin(), y.end(), 0.0f));
  EXPECT_NEAR(dropped / 10000, 0.3, 0.02);
}

TEST(ReferenceDropout, ExtremesKeepAllAndNothing) {
  EXPECT_EQ(dropped_ones({2, 50}, 0.0, {.rows = 2}), std::vector<float>(100, 1));
  EXPECT_EQ(dropped_ones({2, 50}, 1.0, {.rows = 2}), std::vector<float>(100, 0));
}

TEST(DropoutMask, ThresholdEqualsTheComparisonOfUniform) {
  for (double probability : {0.0, 0.1, 0.5, 1.0 / 3, 0x1p-24, 0x1p-25, 0.999999999}) {
    const DropoutMask mask("drop", probability);
    const auto border = static_cast<uint32_t>(probability * 0x1p24);
    for (uint32_t bits = border > 2 ? border - 2 : 0; bits < std::min(border + 3, 1u << 24); ++bits) {
      const uint32_t word = bits << 8 | 0x5A;
      EXPECT_EQ(mask.keeps(word), uniform(word) >= probability) << probability << " " << bits;
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness
