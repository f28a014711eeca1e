#include "backend/cpu/cpu_harness.h"
#include "backend/optimizer_golden.h"

namespace millrace::backend::harness {
namespace {

constexpr OpKind kSteps[] = {OpKind::SgdStep, OpKind::AdamStep, OpKind::LambStep};
const OptimizerOptions kOptions{.momentum = 0.9f, .weight_decay = 0.01f, .decay_bias = false};
const StepContext kContext{.rows = 1, .update = 4, .learning_rate = 0.1f};

class CpuOptimizer : public CpuKernels {
 protected:
  void use(const OptimizerOptions& options) {
    reference_ = make_reference_backend(options);
    cpu_ = make_cpu_backend({.threads = 2}, options);
  }
};

// A convolution's parameter, which lies in blocks with padding.
OneNode of_convolution(const NodeSpec& spec) {
  OneNode one = build(spec);
  const Shape& w = spec.x;
  const graph::Window window{static_cast<int>(w[2]), static_cast<int>(w[3])};
  graph::Op& op = one.graph.ops[0];
  op.kind = OpKind::Conv2d;
  op.attrs = graph::Conv2dAttrs{.out_channels = static_cast<int>(w[0]), .window = window, .bias = false};
  one.graph.values[0].shape = {2, w[1], 9, 9};
  one.graph.features = graph::kNone;
  return one;
}

// Nothing but the parameter's own elements is other than zero.
void expect_zero_padding_of_params(Backend& cpu, const OneNode& one, const NodeRun& run, const Plain& results) {
  for (BufferId id : one.node().writes) {
    if (one.buffer(id).param == graph::kNone) continue;
    const auto* stored = static_cast<const float*>(run.memory(id));
    const auto floats = static_cast<int64_t>(cpu.bytes(one.graph, one.program, id) / sizeof(float));
    const std::vector<float>& plain = results.at(one.buffer(id).name);
    EXPECT_EQ(floats - std::count(stored, stored + floats, 0.0f),
              static_cast<int64_t>(plain.size()) - std::count(plain.begin(), plain.end(), 0.0f))
        << one.buffer(id).name;
  }
}

TEST_F(CpuOptimizer, AdamFollowsTorch) { expect_torch_adamw(*make_cpu_backend({.threads = 2}, kGoldenAdam)); }

TEST_F(CpuOptimizer, LambFollowsThePaper) { expect_lamb(*make_cpu_backend({.threads = 2}, kLamb)); }

TEST_F(CpuOptimizer, ClipFollowsTorch) {
  expect_torch_clipping(*make_cpu_backend({.threads = 2}, {.clip_norm = kGoldenClipNorm}));
}

// The last shape has more than one chunk of a sum.
TEST_F(CpuOptimizer, EveryStepAgreesWithReference) {
  use(kOptions);
  for (const Shape& x : {Shape{1}, Shape{7, 5}, Shape{33}, Shape{3, 16, 5}, Shape{257, 131}}) {
    for (int bits = 0; bits < 16; ++bits) {
      for (OpKind kind : kSteps) {
        NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = x};
        spec.gradient_sum = (bits & 1) != 0;
        spec.clips = (bits & 2) != 0;
        spec.next_version = (bits & 4) != 0;
        spec.role = (bits & 8) != 0 ? graph::ParamRole::Bias : graph::ParamRole::Weight;
        SCOPED_TRACE(testing::Message() << "form " << bits);
        expect_agrees(spec, kContext);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CpuOptimizer, StepsKeepThePaddingOfConvolutions) {
  use(kOptions);
  for (const Shape& x : {Shape{13, 5, 3, 3}, Shape{16, 17, 1, 1}, Shape{64, 3, 2, 2}, Shape{32, 48, 3, 3}}) {
    for (OpKind kind : kSteps) {
      NodeSpec spec{.kind = kind, .pass = Pass::Update, .x = x};
      spec.gradient_sum = true;
      const OneNode one = of_convolution(spec);
      const Plain plain = random_plain(one, kContext, ++seed_);
      SCOPED_TRACE(testing::Message() << graph::name_of(kind) << " on " << x.str());
      NodeRun run(*cpu_, one);
      run.fill(plain);
      run.run(kContext);
      expect_close(one, kContext, run_node(*reference_, one, kContext, plain), run.results(), tolerance_);
      expect_zero_padding_of_params(*cpu_, one, run, run.results());
    }
  }
}

TEST_F(CpuOptimizer, SquaresAgreeWithReference) {
  for (const Shape& x : {Shape{1}, Shape{33}, Shape{257, 131}, Shape{13, 5, 3, 3}, Shape{16, 17, 1, 1}}) {
    for (bool counts : {true, false}) {
      const NodeSpec spec{
          .kind = OpKind::SumSquares, .pass = Pass::Update, .x = x, .attrs = graph::SquaresAttrs{counts}};
      for (const OneNode& one : {build(spec), x.rank() == 4 ? of_convolution(spec) : build(spec)}) {
        const Plain plain = random_plain(one, kContext, ++seed_);
        SCOPED_TRACE(testing::Message() << x.str() << ", counts " << counts);
        expect_close(one, kContext, run_node(*reference_, one, kContext, plain), run_node(*cpu_, one, kContext, plain),
                     1e-6);
      }
    }
  }
}

// A norm that depends on the number of threads would make two machines of one job disagree.
TEST_F(CpuOptimizer, NormsAreTheSameWithAnyNumberOfThreads) {
  const auto run_with = [&](int threads, const NodeSpec& spec) {
    const auto cpu = make_cpu_backend({.threads = threads}, kOptions);
    const OneNode one = build(spec);
    return run_node(*cpu, one, kContext, random_plain(one, kContext, 1));
  };
  const NodeSpec squares{
      .kind = OpKind::SumSquares, .pass = Pass::Update, .x = {1000, 333}, .attrs = graph::SquaresAttrs{}};
  const NodeSpec lamb{.kind = OpKind::LambStep, .pass = Pass::Update, .x = {1000, 333}};
  for (const NodeSpec& spec : {squares, lamb}) {
    const Plain alone = run_with(1, spec);
    for (int threads : {2, 3, 5}) EXPECT_EQ(run_with(threads, spec), alone) << threads << " threads";
  }
}

}  // namespace
}  // namespace millrace::backend::harness
