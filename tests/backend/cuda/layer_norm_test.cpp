#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {
namespace {

using graph::LayerNormAttrs;

class CudaLayerNorm : public CudaKernels {
 protected:
  // Rows of a warp, of a block and wider than that, in whole vectors and not. Of three columns and fewer all or nearly
  // all of dx cancels: rounding is what is left of it.
  template <typename Check>
  void for_each_shape(int64_t narrowest, Check check) {
    Dice dice(61);
    for (int64_t width : {1, 4, 8, 17, 64, 100, 768, 1023, 1024, 1025, 3072, 4096, 8192, 8193, 9000}) {
      const int64_t most = width > 1024 ? 5 : 40;
      for (const Shape& x : {Shape{1, width}, Shape{dice.between(2, 2 * most), width},
                             Shape{dice.between(1, 5), dice.between(1, most), width}}) {
        if (width < narrowest || HasFailure()) continue;
        check(NodeSpec{.kind = OpKind::LayerNorm, .x = x, .attrs = LayerNormAttrs{dice.coin() ? 1e-5 : 1e-12}},
              dice.context(x[0]));
      }
    }
  }
};

TEST_F(CudaLayerNorm, ForwardAgreesWithReference) {
  for_each_shape(1, [&](NodeSpec spec, const StepContext& context) {
    expect_agrees_in_place(spec, context, {{0, 0}});
    spec.pass = Pass::Evaluate;
    expect_agrees_in_place(spec, context, {{0, 0}});
  });
}

TEST_F(CudaLayerNorm, InputGradAgreesWithReference) {
  for_each_shape(4, [&](NodeSpec spec, const StepContext& context) {
    spec.pass = Pass::InputGrad;
    expect_agrees_in_place(spec, context, {{0, 0}, {0, 1}});
  });
}

TEST_F(CudaLayerNorm, WeightGradAgreesWithReference) {
  for_each_shape(4, [&](NodeSpec spec, const StepContext& context) {
    spec.pass = Pass::WeightGrad;
    expect_agrees(spec, context);
  });
}

// Many rows: several blocks of them are summed, and each warp has several rows.
TEST_F(CudaLayerNorm, TheModelsShapesAgreeWithReference) {
  for (const Shape& x : {Shape{16, 197, 768}, Shape{8, 512, 1024}, Shape{40, 128, 63}}) {
    for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
      expect_agrees({.kind = OpKind::LayerNorm, .pass = pass, .x = x, .attrs = LayerNormAttrs{}}, {.rows = x[0]});
    }
  }
}

TEST_F(CudaLayerNorm, OneColumnIsItsShiftAndHasNoGradient) {
  const StepContext context{.rows = 9};
  for (DType dtype : kTypes) {
    NodeSpec spec{.kind = OpKind::LayerNorm, .x = {9, 1}, .attrs = LayerNormAttrs{}, .dtype = dtype};
    const OneNode forward = build_as_emitted(spec);
    const Plain plain = random_rounded(forward, context, 1);
    const float shift = rounded(plain.at("shift")[0], dtype);
    const Plain values = run_node(*cuda_, forward, context, plain);
    for (float y : values.at("y")) EXPECT_EQ(y, shift);
    spec.pass = Pass::InputGrad;
    const OneNode backward = build_as_emitted(spec);
    Plain gradient = random_rounded(backward, context, 1);
    for (int n = 0; n < 9; ++n) gradient.at("saved")[n] = gradient.at("x")[n];
    const Plain results = run_node(*cuda_, backward, context, gradient);
    for (float dx : results.at("dx")) EXPECT_NEAR(dx, 0, 1e-4);
  }
}

// A mean a thousand times the deviation: sums of squares would lose every digit, and so would a mean in one float. And
// one column far from all others, as transformers have them.
TEST_F(CudaLayerNorm, LargeMeanAndOutlierKeepTheVariance) {
  for (int64_t width : {768, 1023, 4096, 9000}) {
    const OneNode one = build_as_emitted({.kind = OpKind::LayerNorm, .x = {5, width}, .attrs = LayerNormAttrs{}});
    const StepContext context{.rows = 5};
    Plain large = random_plain(one, context, 1), outlier = large;
    for (float& value : large.at("x")) value += 1000;
    for (int64_t row = 0; row < 5; ++row) outlier.at("x")[row * width] = 3000;
    for (const Plain& plain : {large, outlier}) {
      const Plain want = run_node(*reference_, one, context, plain), got = run_node(*cuda_, one, context, plain);
      expect_close_in_norm(one, context, want, got, 1e-5);
      for (size_t row = 0; row < 5; ++row) {
        EXPECT_NEAR(got.at("saved")[5 + row] / want.at("saved")[5 + row], 1, 1e-5) << "width " << width;
      }
    }
  }
}

TEST_F(CudaLayerNorm, SumsHaveTheSameBitsEveryTime) {
  for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
    for (int64_t width : {768, 1023, 3072}) {
      const OneNode one = build_as_emitted({.kind = OpKind::LayerNorm,
                                            .pass = pass,
                                            .x = {8, 197, width},
                                            .attrs = LayerNormAttrs{},
                                            .dtype = DType::F16});
      const StepContext context{.rows = 7};
      const Plain plain = random_rounded(one, context, 1);
      const Plain first = run_node(*cuda_, one, context, plain);
      for (int times = 0; times < 3; ++times) EXPECT_EQ(run_node(*cuda_, one, context, plain), first);
    }
  }
}

// Behind the last row a buffer goes on to a multiple of eight elements: the next kernel may read it.
TEST_F(CudaLayerNorm, LeavesZerosBehindTheLastRow) {
  for (Pass pass : {Pass::Forward, Pass::InputGrad, Pass::WeightGrad}) {
    const OneNode one =
        build_as_emitted({.kind = OpKind::LayerNorm, .pass = pass, .x = {3, 37}, .attrs = LayerNormAttrs{}});
    const StepContext context{.rows = 3};
    const Plain plain = random_plain(one, context, 1);
    NodeRun run(*cuda_, one);
    run.fill(plain);
    const BufferId id = one.node().writes[0];
    std::vector<float> stored(static_cast<size_t>(stored_elements(one.buffer(id))), NAN);
    cuda_->copy(run.memory(id), stored.data(), stored.size() * sizeof(float));
    run.run(context);
    cuda_->copy(stored.data(), run.memory(id), stored.size() * sizeof(float));
    for (size_t i = 0; i < stored.size(); ++i) {
      if (is_padding(one.buffer(id), static_cast<int64_t>(i))) {
        EXPECT_EQ(stored[i], 0) << graph::name_of(pass) << ", stored element " << i;
      }
    }
  }
}

TEST_F(CudaLayerNorm, RefusesImages) {
  const OneNode one = build_as_emitted({.kind = OpKind::LayerNorm, .x = {2, 3, 4, 5}, .attrs = LayerNormAttrs{}});
  EXPECT_THROW(cuda_->prepare(one.view()), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::backend::harness::cuda
