#include <gtest/gtest-spi.h>

#include "backend/reference/finite_differences.h"

namespace millrace::backend::harness {
namespace {

// One of each operator, in every form that takes another path through its kernel.
std::vector<NodeSpec> every_node() {
  using namespace graph;
  const Shape x{4, 6, 7, 5};
  const Conv2dAttrs conv{8, Window::square(3, 2, 1), /*groups=*/2};
  const BatchNormAttrs norm{.residual = true, .relu = true};
  const PoolAttrs pool{Window::square(3, 2, 1), /*count_pad=*/false};
  return {
      {.kind = OpKind::Conv2d, .pass = Pass::Forward, .x = x, .attrs = conv},
      {.kind = OpKind::Conv2d, .pass = Pass::InputGrad, .x = x, .attrs = conv},
      {.kind = OpKind::Conv2d, .pass = Pass::WeightGrad, .x = x, .attrs = conv},
      {.kind = OpKind::Linear, .pass = Pass::Forward, .x = {4, 33}, .attrs = LinearAttrs{9}},
      {.kind = OpKind::Linear, .pass = Pass::InputGrad, .x = {4, 33}, .attrs = LinearAttrs{9}},
      {.kind = OpKind::Linear, .pass = Pass::WeightGrad, .x = {4, 33}, .attrs = LinearAttrs{9}},
      {.kind = OpKind::BatchNorm, .pass = Pass::Forward, .x = x, .attrs = norm},
      {.kind = OpKind::BatchNorm, .pass = Pass::Evaluate, .x = x, .attrs = norm},
      {.kind = OpKind::BatchNorm, .pass = Pass::InputGrad, .x = x, .attrs = norm},
      {.kind = OpKind::BatchNorm, .pass = Pass::WeightGrad, .x = x, .attrs = norm},
      {.kind = OpKind::Relu, .pass = Pass::Forward, .x = x},
      {.kind = OpKind::Relu, .pass = Pass::InputGrad, .x = x},
      {.kind = OpKind::MaxPool, .pass = Pass::Forward, .x = x, .attrs = pool},
      {.kind = OpKind::MaxPool, .pass = Pass::InputGrad, .x = x, .attrs = pool},
      {.kind = OpKind::AvgPool, .pass = Pass::Forward, .x = x, .attrs = pool},
      {.kind = OpKind::AvgPool, .pass = Pass::InputGrad, .x = x, .attrs = pool},
      {.kind = OpKind::AdaptiveAvgPool, .pass = Pass::Forward, .x = x, .attrs = AdaptivePoolAttrs{3, 2}},
      {.kind = OpKind::AdaptiveAvgPool, .pass = Pass::InputGrad, .x = x, .attrs = AdaptivePoolAttrs{3, 2}},
      {.kind = OpKind::Flatten, .pass = Pass::Forward, .x = x},
      {.kind = OpKind::Flatten, .pass = Pass::InputGrad, .x = x},
      {.kind = OpKind::Dropout, .pass = Pass::Forward, .x = x, .attrs = DropoutAttrs{0.3}},
      {.kind = OpKind::Dropout, .pass = Pass::InputGrad, .x = x, .attrs = DropoutAttrs{0.3}},
      {.kind = OpKind::Add, .pass = Pass::Forward, .x = x},
      {.kind = OpKind::SoftmaxCrossEntropy, .pass = Pass::Forward, .x = {4, 11}, .attrs = LossAttrs{0.1}},
      {.kind = OpKind::SoftmaxCrossEntropy, .pass = Pass::InputGrad, .x = {4, 11}, .attrs = LossAttrs{0.1}},
      {.kind = OpKind::Accumulate, .pass = Pass::WeightGrad, .x = {5, 3}},
      {.kind = OpKind::Accumulate, .pass = Pass::Update, .x = {5, 3}, .gradient_sum = true},
      {.kind = OpKind::SumSquares, .pass = Pass::Update, .x = {5, 3}, .attrs = SquaresAttrs{}},
      {.kind = OpKind::ClipNorm, .pass = Pass::Update},
      {.kind = OpKind::SgdStep, .pass = Pass::Update, .x = {5, 3}, .gradient_sum = true},
      {.kind = OpKind::AdamStep, .pass = Pass::Update, .x = {5, 3}, .gradient_sum = true, .clips = true},
      {.kind = OpKind::LambStep, .pass = Pass::Update, .x = {5, 3}, .gradient_sum = true, .clips = true},
  };
}

const StepContext kContext{
    .seed = 3, .step = 2, .first_row = 8, .rows = 3, .inverse_samples = 0.25, .learning_rate = 0.1f};
const OptimizerOptions kSgd{.momentum = 0.9f, .nesterov = true, .weight_decay = 0.01f, .clip_norm = 0.5f};

std::string label(const NodeSpec& spec) {
  return std::string(graph::name_of(spec.kind)) + " " + graph::name_of(spec.pass);
}

TEST(ReferenceBackend, FloatFollowsDouble) {
  const auto backend = make_reference_backend(kSgd);
  for (NodeSpec spec : every_node()) {
    SCOPED_TRACE(label(spec));
    const OneNode narrow = build(spec);
    spec.dtype = DType::F64;
    const OneNode wide = build(spec);
    const Plain plain = random_plain(narrow, kContext, 1);
    expect_close(narrow, kContext, run_node(*backend, wide, kContext, plain),
                 run_node(*backend, narrow, kContext, plain), 1e-6);
  }
}

// Every aliasing that autodiff permits.
TEST(ReferenceBackend, InPlaceChangesNothing) {
  const auto backend = make_reference_backend(kSgd);
  using graph::InPlace;
  struct Case {
    OpKind kind;
    Pass pass;
    std::vector<InPlace> in_place;
  };
  const std::vector<Case> cases{
      {OpKind::Relu, Pass::Forward, {{0, 0}}},
      {OpKind::Relu, Pass::InputGrad, {{0, 0}}},
      {OpKind::Dropout, Pass::Forward, {{0, 0}}},
      {OpKind::Dropout, Pass::InputGrad, {{0, 0}}},
      {OpKind::Flatten, Pass::Forward, {{0, 0}}},
      {OpKind::Flatten, Pass::InputGrad, {{0, 0}}},
      {OpKind::Add, Pass::Forward, {{0, 0}}},
      {OpKind::Add, Pass::Forward, {{0, 1}}},
      {OpKind::BatchNorm, Pass::Forward, {{0, 5}}},
      {OpKind::BatchNorm, Pass::Evaluate, {{0, 0}}},
      {OpKind::BatchNorm, Pass::Evaluate, {{0, 5}}},
      {OpKind::BatchNorm, Pass::InputGrad, {{0, 0}}},
      {OpKind::BatchNorm, Pass::InputGrad, {{0, 1}, {2, 0}}},
      {OpKind::SoftmaxCrossEntropy, Pass::InputGrad, {{0, 0}}},
  };
  for (const Case& each : cases) {
    for (NodeSpec spec : every_node()) {
      if (spec.kind != each.kind || spec.pass != each.pass) continue;
      SCOPED_TRACE(label(spec) + " in place");
      const OneNode apart = build(spec);
      spec.in_place = each.in_place;
      const OneNode together = build(spec);
      const Plain plain = random_plain(apart, kContext, 1);
      EXPECT_EQ(run_node(*backend, apart, kContext, plain), run_node(*backend, together, kContext, plain));
    }
  }
}

TEST(ReferenceBackend, NothingPoisonedIsLeft) {
  const auto backend = make_reference_backend(kSgd);
  for (const NodeSpec& spec : every_node()) {
    const OneNode one = build(spec);
    for (const auto& [name, values] : run_node(*backend, one, kContext, random_plain(one, kContext, 1))) {
      for (float value : values) ASSERT_TRUE(std::isfinite(value)) << label(spec) << " " << name;
      if (name == "argmax") {
        for (float value : values) ASSERT_LT(value, 9) << label(spec);
      }
    }
  }
}

TEST(ReferenceBackend, UploadAndDownloadKeepEveryType) {
  const auto backend = make_reference_backend({});
  const OneNode loss = build({.kind = OpKind::SoftmaxCrossEntropy, .x = {2, 3}, .attrs = graph::LossAttrs{}});
  for (BufferId id = 0; id < static_cast<BufferId>(loss.program.buffers.size()); ++id) {
    const graph::Buffer& buffer = loss.buffer(id);
    const size_t bytes = backend->bytes(loss.graph, loss.program, id);
    EXPECT_EQ(bytes, plain_bytes(buffer));
    void* memory = backend->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    std::vector<float> plain(buffer.shape.elements(), 7), back(plain.size(), 1);
    backend->download(loss.graph, loss.program, id, memory, back);
    EXPECT_EQ(back, std::vector<float>(plain.size(), 0)) << "fresh memory is zero";
    backend->upload(loss.graph, loss.program, id, plain, memory);
    backend->download(loss.graph, loss.program, id, memory, back);
    EXPECT_EQ(back, plain) << buffer.name;
    backend->release(memory, bytes);
  }
}

TEST(ReferenceBackend, RefusesPassTheOperatorDoesNotHave) {
  const auto backend = make_reference_backend({});
  OneNode one = build({.kind = OpKind::Relu, .x = {2, 3}});
  one.program.nodes[0].pass = Pass::WeightGrad;
  EXPECT_THROW(backend->prepare(one.view()), std::invalid_argument);
}

TEST(NodeHarness, ComparesTwoBackends) {
  const auto a = make_reference_backend(kSgd), b = make_reference_backend(kSgd);
  for (const NodeSpec& spec : every_node()) expect_same_results(*a, *b, spec, kContext, 1, 0);
}

TEST(NodeHarness, SeesAWrongElementAndNaN) {
  const OneNode one = build({.kind = OpKind::Relu, .x = {2, 3}});
  const Plain right{{"y", {1, 2, 3, 4, 5, 6}}};
  const auto differs = [&](Plain wrong) {
    ::testing::TestPartResultArray failures;
    {
      ::testing::ScopedFakeTestPartResultReporter catcher(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      expect_close(one, {.rows = 1}, right, wrong, 1e-3);
    }
    return failures.size() > 0;
  };
  EXPECT_FALSE(differs({{"y", {1, 2, 3, 9, 9, 9}}})) << "row 1 is padding";
  EXPECT_TRUE(differs({{"y", {1, 2.1f, 3, 4, 5, 6}}}));
  EXPECT_TRUE(differs({{"y", {1, NAN, 3, 4, 5, 6}}}));
  EXPECT_TRUE(differs({{"y", {1, 2, 3, 4, 5, INFINITY}}}));
}

}  // namespace
}  // namespace millrace::backend::harness
