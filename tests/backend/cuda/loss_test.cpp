#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

class CudaLoss : public CudaKernels {
 protected:
  static NodeSpec loss(const Shape& x, DType dtype) {
    return {.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = graph::LossAttrs{}, .dtype = dtype};
  }

  // Forward, then backward from what it saved, of logits up to `size`.
  void expect_passes_agree(NodeSpec spec, const StepContext& context, float size, bool crosses = false) {
    SCOPED_TRACE(testing::Message() << spec.x.str() << " in " << name_of(spec.dtype) << ", logits up to " << size
                                    << (crosses ? ", from another stage" : ""));
    spec.pass = Pass::Forward;
    const OneNode plain_one = build_for_reference(spec), one = place(build_as_emitted(spec), crosses);
    Plain plain = random_plain(one, context, ++seed_);
    for (float& logit : plain.at("logits")) logit = rounded(logit * size, spec.dtype);
    const Plain expected = run_node(*reference_, plain_one, context, plain);
    expect_close_in_norm(one, context, expected, run_on_dirty_memory(*cuda_, one, context, plain),
                         tolerance_of(spec.dtype));
    plain["saved"] = expected.at("saved");
    spec.pass = Pass::InputGrad;
    const Plain gradient = run_node(*reference_, build_for_reference(spec), context, plain);
    for (const auto& in_place : {std::vector<graph::InPlace>{}, {{0, 0}}}) {
      spec.in_place = in_place;
      const OneNode back = place(build_as_emitted(spec), crosses);
      expect_close_in_norm(back, context, gradient, run_on_dirty_memory(*cuda_, back, context, plain),
                           tolerance_of(spec.dtype));
    }
  }
  // Logits that come from another stage have no room behind their rows.
  static OneNode place(OneNode one, bool crosses) {
    const bool backward = one.node().pass == Pass::InputGrad;
    const BufferId gradient = backward ? one.node().writes[0] : graph::kNone;
    if (crosses) one.program.inputs = {{.value = 0, .buffer = one.node().reads[0], .gradient = gradient}};
    return one;
  }
};

TEST_F(CudaLoss, AgreesWithReference) {
  Dice dice(71);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const int64_t batch = i % 5 == 0 ? 300 : dice.between(1, 9), classes = dice.pick({2, 3, 5, 10, 17, 1000, 1001});
    const Shape x = i % 3 == 0 ? Shape{batch, dice.between(1, 5), classes} : Shape{batch, classes};
    const StepContext context = dice.context(x[0]);
    NodeSpec spec{.kind = OpKind::SoftmaxCrossEntropy, .x = x, .attrs = graph::LossAttrs{dice.coin() ? 0.1 : 0.0}};
    expect_agrees(spec, context);
    spec.pass = Pass::Evaluate;
    spec.saves_for_backward = false;
    expect_agrees(spec, context);
    spec.pass = Pass::InputGrad;
    expect_agrees(spec, context);
    spec.in_place = {{0, 0}};
    expect_same_results_in(*reference_, *cuda_, spec, context, 1);
  }
}

// As wide as a vocabulary, with logits of any size: the last ones of a row are a part of a vector.
TEST_F(CudaLoss, WideRowsAgreeWithReference) {
  for (DType dtype : kTypes) {
    for (float size : {1.0f, 20.0f, 1e4f}) {
      for (int64_t classes : {1023, 50257, 50264}) {
        NodeSpec spec = loss({2, 2, classes}, dtype);
        if (size == 20) spec.attrs = graph::LossAttrs{0.1};
        expect_passes_agree(spec, {.rows = 2, .inverse_samples = 0.5}, size);
        expect_passes_agree(spec, {.rows = 1, .inverse_samples = 1}, size, /*crosses=*/true);
      }
    }
  }
}

TEST_F(CudaLoss, RowsThatCrossStagesAgreeWithReference) {
  for (DType dtype : kTypes) {
    for (int64_t classes : {1, 2, 10, 16, 1001}) {
      expect_passes_agree(loss({5, classes}, dtype), {.rows = 4, .inverse_samples = 0.25}, 3, /*crosses=*/true);
      expect_passes_agree(loss({5, classes}, dtype), {.rows = 4, .inverse_samples = 0.25}, 3);
    }
  }
}

TEST_F(CudaLoss, RowsBeginAtSixteenBytesUnlessTheyCrossStages) {
  for (DType dtype : kTypes) {
    for (int64_t classes : {8, 10, 1001, 50257}) {
      const OneNode one = build_as_emitted(loss({6, classes}, dtype)), crossing = place(one, true);
      const auto elements = [&](const OneNode& node) {
        return static_cast<int64_t>(cuda_->bytes(node.graph, node.program, node.node().reads[0]) / bytes_of(dtype));
      };
      EXPECT_GE(elements(one), 6 * classes);
      EXPECT_EQ(elements(one) % (6 * 8), 0) << classes;
      EXPECT_EQ(elements(crossing), (6 * classes + 7) / 8 * 8);
    }
  }
}

// Wherever the label and its equals stand in a vector.
TEST_F(CudaLoss, OfEqualLogitsTheSmallerIndexComesFirst) {
  constexpr int kClasses = 21;
  for (DType dtype : kTypes) {
    for (bool crosses : {false, true}) {
      const OneNode one = place(build_as_emitted(loss({1, kClasses}, dtype)), crosses);
      for (int label = 0; label < kClasses; ++label) {
        for (int other = 0; other < kClasses; ++other) {  // the only larger one
          Plain plain{{"logits", std::vector<float>(kClasses, -2)}, {"labels", {static_cast<float>(label)}}};
          plain.at("logits")[other] = -1;
          const std::vector<float> metrics = run_node(*cuda_, one, {.rows = 1}, plain).at("metrics");
          const int before = label == other ? 0 : label + (other > label);
          EXPECT_EQ(metrics[graph::kTop1], before < 1) << label << " of " << other;
          EXPECT_EQ(metrics[graph::kTop5], before < 5) << label << " of " << other;
        }
      }
    }
  }
}

TEST_F(CudaLoss, ForwardThatIsRunAgainCountsNothing) {
  const OneNode one = build_as_emitted(loss({1, 2}, DType::F32));
  const Plain plain{{"logits", {0, 0}}, {"labels", {0}}};
  const Plain results = run_node(*cuda_, one, {.rows = 1, .again = true}, plain);
  EXPECT_EQ(results.at("metrics"), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(results.at("saved"), (std::vector<float>{0, 0.5f}));
}

TEST_F(CudaLoss, MetricsAreAddedUp) {
  for (DType dtype : kTypes) {
    const OneNode one = build_as_emitted(loss({3, 7}, dtype));
    const StepContext context{.rows = 3};
    const Plain plain = random_rounded(one, context, 1);
    NodeRun run(*cuda_, one);
    run.fill(plain);
    run.run(context);
    const std::vector<float> once = run.results().at("metrics");
    run.run(context);
    const std::vector<float> twice = run.results().at("metrics");
    for (int i = 0; i < graph::kNumMetrics; ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]) << "metric " << i;
  }
}

TEST_F(CudaLoss, HardCasesAgreeWithReference) {
  // Equal logits, huge ones, one far behind, and a row without a label.
  const Plain plain{
      {"logits", {1, 1, 1, 1, 1, 1, 1, 1000, -1000, 0, 0, 0, 0, 0, 0, 80, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9}},
      {"labels", {5, 0, 1, -1}}};
  const StepContext context{.rows = 4};
  for (DType dtype : kTypes) {
    const NodeSpec spec = loss({4, 7}, dtype);
    const Plain expected = run_node(*reference_, build_for_reference(spec), context, plain);
    const OneNode one = build_as_emitted(spec);
    expect_close_in_norm(one, context, expected, run_node(*cuda_, one, context, plain), tolerance_of(dtype));
    EXPECT_EQ(expected.at("metrics")[graph::kRows], 3);
  }
}

TEST_F(CudaLoss, NaNIsNeverCorrect) {
  for (DType dtype : kTypes) {
    const OneNode one = build_as_emitted(loss({1, 3}, dtype));
    const Plain results = run_node(*cuda_, one, {.rows = 1}, {{"logits", {NAN, NAN, NAN}}, {"labels", {0}}});
    EXPECT_TRUE(std::isnan(results.at("metrics")[graph::kLossSum]));
    EXPECT_EQ(results.at("metrics")[graph::kTop1], 0);
    EXPECT_EQ(results.at("metrics")[graph::kTop5], 0);
    EXPECT_EQ(results.at("metrics")[graph::kRows], 1);
  }
}

// There is no way to throw from the device.
TEST_F(CudaLoss, LabelThatIsNoClassMakesTheLossNaN) {
  const OneNode one = build_as_emitted(loss({2, 3}, DType::F32));
  const Plain plain{{"logits", {1, 2, 3, 1, 2, 3}}, {"labels", {2, 3}}};
  const std::vector<float> metrics = run_node(*cuda_, one, {.rows = 2}, plain).at("metrics");
  EXPECT_TRUE(std::isnan(metrics[graph::kLossSum]));
  EXPECT_EQ(metrics[graph::kTop1], 1);
  EXPECT_EQ(metrics[graph::kRows], 2);
}

TEST_F(CudaLoss, GradientCarriesTheLossScale) {
  const StepContext context{.rows = 4, .inverse_samples = 0.25};
  for (DType dtype : kTypes) {
    NodeSpec spec = loss({5, 13}, dtype);
    spec.pass = Pass::InputGrad;
    const OneNode plain_one = build_for_reference(spec);
    spec.loss_scale = true;
    const OneNode one = build_as_emitted(spec);
    const Plain plain = random_rounded(one, context, 1);
    Plain expected = run_node(*reference_, plain_one, context, plain);
    for (float& value : expected.at("dlogits")) value *= kLossScale;
    expect_close_in_norm(one, context, expected, run_on_dirty_memory(*cuda_, one, context, plain), tolerance_of(dtype));
  }
}

// Sums over rows do not depend on which block comes first.
TEST_F(CudaLoss, MetricsHaveTheSameBitsEveryTime) {
  const OneNode one = build_as_emitted(loss({512, 1000}, DType::F16));
  const StepContext context{.rows = 500};
  const Plain plain = random_rounded(one, context, 1);
  const Plain first = run_node(*cuda_, one, context, plain);
  for (int times = 0; times < 5; ++times) EXPECT_EQ(run_node(*cuda_, one, context, plain), first);
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
