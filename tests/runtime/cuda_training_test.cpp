// Whole runs on a GPU: the same numbers as elsewhere, whatever the topology, and steps that overflow leave no trace.
// Workers share the one GPU there is.
#include <algorithm>
#include <cmath>

#include "runtime/cuda_harness.h"

namespace millrace::runtime {
namespace {

using job::Mode;
using job::Precision;

class CudaTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (backend::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(CudaTraining, FollowsTheReference) {
  for (const char* model : {"alexnet_small", "resnet_small"}) {
    SCOPED_TRACE(model);
    job::Job job = cuda_job();
    job.model.name = model;
    const RunResult gpu = run(job);
    job.device = job::Device::Reference;
    const RunResult reference = run(job);
    EXPECT_LT(largest_difference(gpu.state, reference.state), 1e-4);
    ASSERT_EQ(gpu.losses.size(), reference.losses.size());
    for (size_t i = 0; i < gpu.losses.size(); ++i) EXPECT_NEAR(gpu.losses[i], reference.losses[i], 1e-4);
  }
}

// In every precision, the same bits twice, and in two stages.
void expect_follows_the_reference(job::Job job) {
  const auto in_stages = [&](int stages) {
    job::Job many = job;
    many.parallel.mode = Mode::OneFOneB;
    many.parallel.microbatches = 2;
    many.parallel.placement = straight(stages);
    return run(many);
  };
  std::map<Precision, RunResult> runs;
  for (const Precision precision : precisions({Precision::Fp32, Precision::Fp16, Precision::Bf16})) {
    job.precision = precision;
    runs[precision] = run(job);
    EXPECT_TRUE(runs[precision].state == run(job).state) << static_cast<int>(precision);
    EXPECT_TRUE(in_stages(2).state == in_stages(1).state) << static_cast<int>(precision);
  }
  job.device = job::Device::Reference;
  job.precision = Precision::Fp32;
  const RunResult reference = run(job);
  for (const auto& [precision, gpu] : runs) {
    const double tolerance = precision == Precision::Fp32 ? 1e-4 : 2e-2;
    for (size_t i = 0; i < gpu.losses.size(); ++i) {
      EXPECT_NEAR(gpu.losses[i], reference.losses[i], tolerance * reference.losses[i]) << static_cast<int>(precision);
    }
  }
}

TEST_F(CudaTraining, AVisionTransformerFollowsTheReference) {
  job::Job job = cuda_job();
  job.model = small_vit(32, 64, 4);
  job.optimizer.lr = 0.01;
  expect_follows_the_reference(job);
}

// Tied embeddings, clipping, all optimizers, and a vocabulary whose rows are not whole vectors.
TEST_F(CudaTraining, ALanguageModelFollowsTheReference) {
  for (const job::Algorithm kind : {job::Algorithm::Sgd, job::Algorithm::AdamW, job::Algorithm::Lamb}) {
    SCOPED_TRACE(static_cast<int>(kind));
    job::Job job = cuda_job();
    job.model = {.name = "gpt2",
                 .dropout = 0.1,
                 .width = 64,
                 .layers = 2,
                 .heads = 2,
                 .mlp = 96,
                 .vocabulary = 61,
                 .tokens = 24};
    job.data = {.kind = job::DataKind::Synthetic, .train_samples = 32};
    job.optimizer.kind = kind;
    job.optimizer.lr = kind == job::Algorithm::Sgd ? 0.05 : 2e-3;
    job.optimizer.clip_norm = 0.5;
    expect_follows_the_reference(job);
  }
}

TEST_F(CudaTraining, BlocksThatAreComputedAgainChangeNoBit) {
  for (const Precision precision : precisions({Precision::Fp32, Precision::Bf16})) {
    job::Job job = cuda_job(precision);
    job.model = small_vit(32, 64, 4);
    job.parallel.recompute = job::Recompute::Off;
    const RunResult kept = run(job);
    job.parallel.recompute = job::Recompute::Block;
    const RunResult again = run(job);
    EXPECT_TRUE(again.state == kept.state);
    EXPECT_LT(again.planned_bytes, kept.planned_bytes);
  }
}

TEST_F(CudaTraining, TwoHundredStepsFollowTheLossCurve) {
  job::Job job = cuda_job();
  job.model = {.name = "resnet_small", .classes = 10, .image_size = 12};
  job.data.train_samples = 64;
  job.batch = 16;
  job.steps = 200;
  job.optimizer.lr = 0.02;
  const auto curve = [](const std::vector<double>& losses) {
    std::vector<double> means;
    for (size_t begin = 0; begin < losses.size(); begin += 20) {
      double sum = 0;
      for (size_t i = begin; i < begin + 20; ++i) sum += losses[i];
      means.push_back(sum / 20);
    }
    return means;
  };
  std::map<Precision, std::vector<double>> curves;
  for (const Precision precision : precisions({Precision::Fp32, Precision::Tf32, Precision::Fp16, Precision::Bf16})) {
    job.precision = precision;
    curves[precision] = curve(run(job).losses);
  }
  job.device = job::Device::Reference;
  job.precision = Precision::Fp32;
  const std::vector<double> wanted = curve(run(job).losses);
  EXPECT_LT(wanted.back(), 0.7 * wanted.front()) << "nothing was learned";
  for (const auto& [precision, means] : curves) {
    const double tolerance = precision == Precision::Fp32 ? 0.02 : 0.1;
    for (size_t i = 0; i < means.size(); ++i) {
      EXPECT_NEAR(means[i], wanted[i], tolerance * wanted.front()) << static_cast<int>(precision) << " " << i;
    }
  }
}

TEST_F(CudaTraining, TwoRunsAreBitEqual) {
  for (const Precision precision : precisions({Precision::Fp32, Precision::Tf32, Precision::Fp16, Precision::Bf16})) {
    job::Job job = cuda_job(precision);
    job.model.name = "resnet_small";
    EXPECT_TRUE(run(job).state == run(job).state) << static_cast<int>(precision);
  }
}

TEST_F(CudaTraining, SynchronousStagesGiveTheBitsOfOneWorker) {
  for (const Precision precision : precisions({Precision::Fp32, Precision::Fp16, Precision::Bf16})) {
    for (const Mode mode : {Mode::GPipe, Mode::OneFOneB}) {
      const job::Job two = on_two(cuda_job(precision), mode, 4);
      EXPECT_TRUE(run(two).state == run(on_one(two)).state) << static_cast<int>(precision);
    }
  }
}

TEST_F(CudaTraining, ReplicasDifferByTheOrderOfTheirSum) {
  const job::Job two = on_two(cuda_job(), Mode::Dp);
  EXPECT_LT(largest_difference(run(two).state, run(on_one(two)).state), 1e-6);
}

TEST_F(CudaTraining, StagesWithoutDelayGiveTheBitsOfOneWorker) {
  for (const Precision precision : precisions({Precision::Fp32, Precision::Fp16})) {
    job::Job two = on_two(cuda_job(precision), Mode::Ssp);
    two.parallel.versions = {1, 1};
    EXPECT_TRUE(run(two).state == run(on_one(two)).state) << static_cast<int>(precision);
  }
}

TEST_F(CudaTraining, DelayedStagesFollowTheReference) {
  for (const Mode mode : {Mode::Ssp, Mode::PipeDream}) {
    job::Job two = on_two(cuda_job(), mode);
    const RunResult gpu = run(two);
    two.device = job::Device::Reference;
    EXPECT_LT(largest_difference(gpu.state, run(two).state), 1e-4);
  }
}

// The scale grows by so much after three good steps that the fourth must overflow; it is left out everywhere.
job::Job overflowing(job::Job job) {
  job.model.dropout = 0;
  job.data = {.kind = job::DataKind::Synthetic};
  job.loss_scale = {.start = 1024, .factor = 0x1p40, .interval = 3, .floor = 1024};
  job.steps = 6;
  return job;
}

TEST_F(CudaTraining, AStepThatOverflowsIsLeftOutByAll) {
  if (device::is_emulated()) GTEST_SKIP() << "the emulated device has no f16";
  std::vector<job::Job> jobs{on_one(cuda_job(Precision::Fp16)), on_two(cuda_job(Precision::Fp16), Mode::Dp),
                             on_two(cuda_job(Precision::Fp16), Mode::OneFOneB, 2)};
  jobs.push_back(on_two(cuda_job(Precision::Fp16), Mode::Ssp));
  jobs.back().parallel.versions = {1, 1};
  for (job::Job& job : jobs) {
    SCOPED_TRACE(job.parallel.placement + " " + std::to_string(static_cast<int>(job.parallel.mode)));
    const RunResult bad = run(overflowing(job));
    // Good, good, good and larger, bad and smaller again, good, good: five updates.
    EXPECT_EQ(bad.state.loss_scale, (std::vector<float>{1024, 2, 1}));
    job::Job good = overflowing(job);
    good.steps = 5;
    good.loss_scale.interval = 1000;
    const RunResult never = run(good);
    EXPECT_TRUE(bad.state.params == never.state.params);
    EXPECT_TRUE(bad.state.velocity == never.state.velocity);
    EXPECT_EQ(never.state.loss_scale[2], 0);
  }
}

TEST_F(CudaTraining, DelayedStagesLeaveAStepOutTogether) {
  if (device::is_emulated()) GTEST_SKIP() << "the emulated device has no f16";
  const RunResult bad = run(overflowing(on_two(cuda_job(Precision::Fp16), Mode::Ssp)));
  EXPECT_EQ(bad.state.loss_scale, (std::vector<float>{1024, 2, 1}));
  for (const auto& [name, tensor] : bad.state.params) {
    for (float value : tensor.data) ASSERT_TRUE(std::isfinite(value)) << name;
  }
}

TEST_F(CudaTraining, AModelThatDoesNotFitIsRefusedWithTheNumbers) {
  job::Job job = cuda_job();
  const auto process = comm::make_local_process();
  try {
    Training training(job, *process, {.memory_bytes = 100'000, .source = "the GPU"});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("the GPU has"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace::runtime
