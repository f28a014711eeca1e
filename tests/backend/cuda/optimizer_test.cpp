#include "backend/cuda/step_harness.h"
#include "backend/optimizer_golden.h"

namespace millrace::backend::harness::cuda {
namespace {

using CudaOptimizer = CudaSteps;

const OptimizerOptions kOptions{.momentum = 0.9f, .weight_decay = 0.01f, .decay_bias = false};
const StepContext kContext{.rows = 1, .update = 6, .learning_rate = 0.1f};

TEST_F(CudaOptimizer, AdamFollowsTorch) {
  use(kGoldenAdam);
  expect_torch_adamw(*cuda_);
}

TEST_F(CudaOptimizer, LambFollowsThePaper) {
  use(kLamb);
  expect_lamb(*cuda_);
}

TEST_F(CudaOptimizer, EveryFormAgreesWithReference) {
  use(kOptions);
  for (OpKind kind : kSteps) {
    for (int bits = 0; bits < 32 && !HasFailure(); ++bits) {
      NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = {7, 5}};
      spec.gradient_sum = (bits & 1) != 0;
      spec.clips = (bits & 2) != 0;
      spec.loss_scale = (bits & 4) != 0;
      spec.next_version = (bits & 8) != 0;
      spec.role = (bits & 16) != 0 ? graph::ParamRole::Bias : graph::ParamRole::Weight;
      SCOPED_TRACE(testing::Message() << "form " << bits);
      expect_steps_agree(spec, kContext);
    }
  }
}

// Weights of convolutions have a layout of their own, and padding that stays as it is. Some have several chunks.
TEST_F(CudaOptimizer, EveryShapeAgreesWithReference) {
  use(kOptions);
  for (const Shape& x : {Shape{1}, Shape{13}, Shape{3, 16, 5}, Shape{1000, 513}, Shape{64, 3, 7, 7}, Shape{13, 5, 3, 3},
                         Shape{64, 64, 1, 1}, Shape{8, 1, 3, 3}, Shape{128, 130, 3, 3}}) {
    for (OpKind kind : kSteps) {
      for (bool gradient_sum : {false, true}) {
        NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = x};
        spec.gradient_sum = spec.next_version = gradient_sum;
        expect_steps_agree(spec, kContext);
        if (HasFailure()) return;
      }
    }
  }
}

// From the first step on, and where the means have forgotten that they began at zero.
TEST_F(CudaOptimizer, EveryStepCountAgreesWithReference) {
  use(kOptions);
  for (OpKind kind : {OpKind::AdamStep, OpKind::LambStep}) {
    for (int64_t update : {kSkipped, kSkipped + 1, 100, 3000, 1'000'000}) {
      NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = {33}};
      SCOPED_TRACE(testing::Message() << "update " << update);
      for (bool loss_scale : {false, true}) {
        spec.loss_scale = loss_scale;
        expect_steps_agree(spec, {.update = update, .learning_rate = 0.1f});
      }
    }
  }
}

TEST_F(CudaOptimizer, RateFallsWithTheDistanceFromTheHead) {
  OptimizerOptions options = kOptions;
  options.layer_decay = 0.5f;
  use(options);
  const auto plain_backend = make_cuda_backend({}, kOptions);
  for (OpKind kind : kSteps) {
    OneNode one = build({.kind = kind, .pass = Pass::Update, .x = {33}});
    one.graph.params[0].depth = 3;
    one.graph.params.push_back({"head", {2}, graph::ParamRole::Weight, {}, 5});
    const Plain plain = random_plain(one, kContext, 1);
    StepContext slower = kContext;
    slower.learning_rate *= 0.25f;
    EXPECT_EQ(run_node(*cuda_, one, kContext, plain), run_node(*plain_backend, one, slower, plain));
  }
}

TEST_F(CudaOptimizer, GradientsThatAreNotFiniteLeaveEverything) {
  use(kOptions);
  for (OpKind kind : kSteps) {
    for (bool clips : {false, true}) {
      NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = {5, 7}, .dtype = DType::F16};
      spec.loss_scale = spec.gradient_sum = spec.next_version = true;
      spec.clips = clips;
      SCOPED_TRACE(testing::Message() << graph::name_of(kind) << ", clips " << clips);
      const OneNode one = build_as_emitted(spec);
      Plain plain = random_rounded(one, kContext, 1);
      plain.at("agreement")[graph::kOverflow] = 1;
      plain.at("agreement")[graph::kClip] = NAN;
      plain.at("dw")[3] = INFINITY;
      const Plain results = run_node(*cuda_, one, kContext, plain);
      for (const auto& [name, got] : results) {
        if (name == "dw") {
          EXPECT_EQ(got, std::vector<float>(35, 0.0f)) << "cleared for the next step";
        } else {
          EXPECT_EQ(got, plain.at(name == "new w" ? "w" : name)) << name;
        }
      }
    }
  }
}

// Several parameters at once, some of several chunks: the same numbers as each alone, and the same every time.
TEST_F(CudaOptimizer, TogetherIsTheSameAsAlone) {
  use(kOptions);
  for (OpKind kind : kSteps) {
    for (DType dtype : kTypes) {
      std::vector<OneNode> ones;
      std::vector<Plain> plain;
      for (const Shape& x : {Shape{13}, Shape{300, 257}, Shape{40, 20, 3, 3}, Shape{1}, Shape{16384}, Shape{16385}}) {
        NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = x, .dtype = dtype};
        spec.clips = true;
        spec.gradient_sum = x.rank() != 1;
        spec.role = x.rank() == 1 ? graph::ParamRole::Bias : graph::ParamRole::Weight;
        ones.push_back(build_as_emitted(spec));
        plain.push_back(random_rounded(ones.back(), kContext, ++seed_));
        plain.back().at("agreement") = plain[0].at("agreement");
      }
      TogetherRun together(*cuda_, ones);
      const std::vector<Plain> results = together.run(kContext, plain);
      EXPECT_EQ(together.run(kContext, plain), results) << "once more";
      for (size_t i = 0; i < ones.size(); ++i) {
        EXPECT_EQ(results[i], run_node(*cuda_, ones[i], kContext, plain[i]))
            << graph::name_of(kind) << " in " << name_of(dtype) << ", parameter " << i;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
