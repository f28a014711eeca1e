#include "backend/cuda/step_harness.h"
#include "backend/optimizer_golden.h"

namespace millrace::backend::harness::cuda {
namespace {

using CudaAgreement = CudaKernels;

const StepContext kContext{.rows = 1};
const std::vector<Shape> kParamShapes{{1}, {13}, {1000, 513}, {16384}, {16385}, {13, 5, 3, 3}, {64, 3, 7, 7}};

NodeSpec check_spec(OpKind kind, const Shape& x, DType dtype, bool counts = true) {
  NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = x, .dtype = dtype};
  if (kind == OpKind::SumSquares) spec.attrs = graph::SquaresAttrs{counts};
  return spec;
}

// Anything may stand behind the end of a plain parameter.
void spoil_tail(Backend& cuda, const OneNode& one, const NodeRun& run) {
  const BufferId id = one.node().reads[0];
  const graph::Buffer& buffer = one.buffer(id);
  if (buffer.shape.rank() == 4) return;
  const size_t used = static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype);
  const std::vector<uint8_t> nan(cuda.bytes(one.graph, one.program, id) - used, 0xFF);
  if (!nan.empty()) cuda.copy(static_cast<std::byte*>(run.memory(id)) + used, nan.data(), nan.size());
}

std::vector<float> agreement_after(Backend& cuda, const OneNode& one, const Plain& plain) {
  NodeRun run(cuda, one);
  run.fill(plain);
  spoil_tail(cuda, one, run);
  run.run(kContext);
  return run.results().at("agreement");
}

TEST_F(CudaAgreement, SquaresAgreeWithReference) {
  for (const Shape& x : kParamShapes) {
    for (DType dtype : kTypes) {
      for (bool counts : {true, false}) {
        for (bool gradient_sum : {true, false}) {
          SCOPED_TRACE(testing::Message() << x.str() << " in " << name_of(dtype) << ", counts " << counts);
          NodeSpec spec = check_spec(OpKind::SumSquares, x, dtype, counts);
          spec.gradient_sum = gradient_sum;
          const OneNode one = build_as_emitted(spec);
          const Plain plain = random_rounded(one, kContext, ++seed_);
          std::vector<float> want = run_node(*reference_, build_for_reference(spec), kContext, plain).at("agreement");
          std::vector<float> got = agreement_after(*cuda_, one, plain);
          const size_t place = graph::kSquares + 1;
          EXPECT_NEAR(got[place], want[place], 1e-6 * std::abs(want[place]));
          got[place] = want[place];
          EXPECT_EQ(got, want) << "the other places are other stages'";
        }
      }
    }
  }
}

TEST_F(CudaAgreement, SquaresOfManyAreTheSameEveryTime) {
  for (DType dtype : kTypes) {
    std::vector<OneNode> ones;
    std::vector<Plain> plain;
    for (const Shape& x : {Shape{1000, 513}, Shape{13}, Shape{40, 20, 3, 3}}) {
      ones.push_back(build_as_emitted(check_spec(OpKind::SumSquares, x, dtype, ones.size() != 1)));
      OneNode& one = ones.back();
      one.program.buffers[static_cast<size_t>(one.node().reads[0])].param = static_cast<int>(ones.size()) - 1;
      plain.push_back(random_rounded(one, kContext, ++seed_));
      plain.back().at("agreement") = plain[0].at("agreement");
    }
    TogetherRun together(*cuda_, ones);
    const std::vector<float> got = together.run(kContext, plain)[0].at("agreement");
    for (int times = 0; times < 5; ++times) EXPECT_EQ(together.run(kContext, plain)[0].at("agreement"), got);
    for (size_t i = 0; i < ones.size(); ++i) {
      double square = 0;
      for (float value : plain[i].at("dw")) square += static_cast<double>(value) * value;
      if (i == 1) square = 0;  // counted by another stage
      EXPECT_NEAR(got[graph::kSquares + i], square, 1e-6 * square) << "parameter " << i;
    }
  }
}

// Wherever it stands, whether or not this stage counts the parameter.
TEST_F(CudaAgreement, GradientThatIsNotFiniteIsFound) {
  for (const Shape& x : kParamShapes) {
    for (const bool gradient_sum : {true, false}) {
      for (const NodeSpec& check :
           {check_spec(OpKind::CheckFinite, x, DType::F16), check_spec(OpKind::SumSquares, x, DType::F16, true),
            check_spec(OpKind::SumSquares, x, DType::F16, false)}) {
        NodeSpec spec = check;
        spec.gradient_sum = gradient_sum;
        SCOPED_TRACE(testing::Message() << graph::name_of(spec.kind) << " on " << x.str() << ", sum " << gradient_sum);
        const OneNode one = build_as_emitted(spec);
        Plain plain = random_rounded(one, kContext, ++seed_);
        EXPECT_EQ(agreement_after(*cuda_, one, plain)[graph::kOverflow], 0);
        for (const float bad : {INFINITY, -INFINITY, NAN}) {
          const auto last = static_cast<size_t>(x.elements()) - 1;
          for (const size_t at : {size_t{0}, last / 2, last}) {
            Plain spoiled = plain;
            spoiled.at("dw")[at] = bad;
            EXPECT_GT(agreement_after(*cuda_, one, spoiled)[graph::kOverflow], 0) << bad << " at " << at;
          }
        }
      }
    }
  }
}

// Without a loss scale nobody looks at the overflow: the norm itself shows it.
TEST_F(CudaAgreement, OnlyF16CountsOverflows) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    const OneNode one = build_as_emitted(check_spec(OpKind::SumSquares, {33}, dtype));
    Plain plain = random_rounded(one, kContext, 1);
    plain.at("dw")[3] = INFINITY;
    const std::vector<float> got = agreement_after(*cuda_, one, plain);
    EXPECT_EQ(got[graph::kOverflow], 0);
    EXPECT_EQ(got[graph::kSquares + 1], INFINITY);
  }
}

TEST_F(CudaAgreement, ClipFollowsTorch) {
  use({.clip_norm = kGoldenClipNorm});
  expect_torch_clipping(*cuda_);
}

TEST_F(CudaAgreement, NormIsThatOfTheGradientsWithoutTheirScale) {
  use({.clip_norm = kGoldenClipNorm});
  const OneNode one = build({.kind = OpKind::ClipNorm, .pass = Pass::Update, .dtype = DType::F16});
  Plain plain = random_plain(one, kContext, 1);
  plain.at("agreement")[graph::kSquares] = 25 * kLossScale * kLossScale;
  plain.at("agreement")[graph::kSquares + 1] = 5.25f * kLossScale * kLossScale;
  plain.at("agreement")[graph::kSquares + 2] = 0;
  const std::vector<float> got = run_node(*cuda_, one, kContext, plain).at("agreement");
  EXPECT_FLOAT_EQ(got[graph::kNorm], 5.5f);
  EXPECT_FLOAT_EQ(got[graph::kClip], 2.5f / 5.500001f);
}

// More squares than a block has threads.
TEST_F(CudaAgreement, NormIsOfEveryParameter) {
  use({.clip_norm = 1});
  OneNode one = build({.kind = OpKind::ClipNorm, .pass = Pass::Update});
  one.program.buffers[static_cast<size_t>(one.program.agreement)].shape = {graph::kSquares + 1000};
  const Plain plain = random_plain(one, kContext, 1);
  const Plain want = run_node(*reference_, one, kContext, plain), got = run_node(*cuda_, one, kContext, plain);
  EXPECT_FLOAT_EQ(got.at("agreement")[graph::kNorm], want.at("agreement")[graph::kNorm]);
  EXPECT_FLOAT_EQ(got.at("agreement")[graph::kClip], want.at("agreement")[graph::kClip]);
}

TEST_F(CudaAgreement, ScaleFallsWithAnOverflowAndGrowsWithGoodSteps) {
  using namespace graph;
  use({.scale = {.factor = 2, .interval = 3, .floor = 512}});
  const OneNode one = build({.kind = OpKind::AdjustScale, .pass = Pass::Update, .dtype = DType::F16});
  std::vector<float> fields = random_plain(one, kContext, 1).at("agreement");
  const auto adjust = [&](float overflow) {
    fields[kOverflow] = overflow;
    fields = run_node(*cuda_, one, kContext, {{"agreement", fields}}).at("agreement");
    EXPECT_EQ(fields[kInverseScale], 1 / fields[kScale]);
    EXPECT_EQ(fields[kOverflow], 0);
  };
  adjust(7);
  EXPECT_EQ(fields[kScale], 512);
  EXPECT_EQ(fields[kSkippedSteps], kSkipped + 1);
  adjust(1);
  EXPECT_EQ(fields[kScale], 512) << "the floor";
  EXPECT_EQ(fields[kSkippedSteps], kSkipped + 2);
  for (float good : {1.0f, 2.0f}) {
    adjust(0);
    EXPECT_EQ(fields[kGoodSteps], good);
    EXPECT_EQ(fields[kScale], 512);
  }
  adjust(0);
  EXPECT_EQ(fields[kScale], 1024);
  EXPECT_EQ(fields[kGoodSteps], 0);
  EXPECT_EQ(fields[kSkippedSteps], kSkipped + 2);
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
