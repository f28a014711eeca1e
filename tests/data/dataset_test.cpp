#include "millrace/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace millrace::data {
namespace {

job::Job small_job(job::DataKind kind) {
  job::Job job;
  job.batch = 8;
  job.seed = 3;
  job.model.classes = 10;
  job.model.image_size = 32;
  job.data = {kind, 500, 200, 0.5};
  return job;
}

struct Samples {
  std::vector<float> images;
  std::vector<int32_t> labels;
};

Samples take(const Dataset& dataset, const std::vector<int64_t>& ids, int64_t epoch = 0) {
  Samples samples;
  samples.images.resize(ids.size() * static_cast<size_t>(dataset.feature_bytes()) / sizeof(float), NAN);
  samples.labels.resize(ids.size(), kNoLabel);
  dataset.reader()->fill(ids, epoch, reinterpret_cast<std::byte*>(samples.images.data()), samples.labels.data());
  return samples;
}

std::vector<int64_t> first_ids(int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

double mean_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(const std::vector<float>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const float value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class EveryKind : public testing::TestWithParam<job::DataKind> {};
INSTANTIATE_TEST_SUITE_P(Dataset, EveryKind, testing::Values(job::DataKind::Synthetic, job::DataKind::Generated));

TEST_P(EveryKind, SampleDependsOnlyOnSeedAndId) {
  const auto dataset = make_dataset(small_job(GetParam()), Split::Train);
  const auto again = make_dataset(small_job(GetParam()), Split::Train);
  const Samples together = take(*dataset, {4, 9, 7});
  const Samples alone = take(*again, {7}, 2);
  EXPECT_EQ(together.labels[2], alone.labels[0]);
  EXPECT_TRUE(std::equal(alone.images.begin(), alone.images.end(), together.images.begin() + 2 * 3 * 32 * 32));
}

TEST_P(EveryKind, SeedsAndSplitsDiffer) {
  job::Job job = small_job(GetParam());
  const Samples train = take(*make_dataset(job, Split::Train), {0, 1});
  EXPECT_NE(train.images, take(*make_dataset(job, Split::Test), {0, 1}).images);
  job.seed = 4;
  EXPECT_NE(train.images, take(*make_dataset(job, Split::Train), {0, 1}).images);
}

TEST_P(EveryKind, LabelsAndPixelsAreInRange) {
  const auto dataset = make_dataset(small_job(GetParam()), Split::Train);
  const Samples samples = take(*dataset, first_ids(dataset->size()));
  for (const int32_t label : samples.labels) EXPECT_TRUE(label >= 0 && label < 10) << label;
  EXPECT_TRUE(std::all_of(samples.images.begin(), samples.images.end(), [](float x) { return std::isfinite(x); }));
  EXPECT_NEAR(mean_of(samples.images), 0, 0.05);
  EXPECT_NEAR(deviation_of(samples.images), 1.2, 0.25);
}

TEST_P(EveryKind, SizesThatDivideNothingAreFilledToTheEnd) {
  job::Job job = small_job(GetParam());
  job.model.image_size = 7;
  job.model.channels = 1;
  job.model.classes = 3;
  const auto dataset = make_dataset(job, Split::Test);
  ASSERT_EQ(dataset->feature_bytes(), 49 * 4);
  const Samples samples = take(*dataset, {0, 1, 2});
  EXPECT_TRUE(std::all_of(samples.images.begin(), samples.images.end(), [](float x) { return std::isfinite(x); }));
}

TEST_P(EveryKind, TestSplitMayBeEmpty) {
  job::Job job = small_job(GetParam());
  job.data.test_samples = 0;
  EXPECT_EQ(make_dataset(job, Split::Test)->size(), 0);
}

TEST(Dataset, SizesComeFromTheJob) {
  const job::Job job = small_job(job::DataKind::Generated);
  EXPECT_EQ(make_dataset(job, Split::Train)->size(), 500);
  EXPECT_EQ(make_dataset(job, Split::Test)->size(), 200);
  EXPECT_FALSE(make_dataset(job, Split::Train)->one_fixed_batch());
}

TEST(Dataset, SyntheticWithoutSamplesIsOneFixedBatch) {
  job::Job job = small_job(job::DataKind::Synthetic);
  job.data.train_samples = 0;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_EQ(dataset->size(), 8);
  EXPECT_TRUE(dataset->one_fixed_batch());
}

TEST(Dataset, ImpossibleDataIsRefused) {
  job::Job job = small_job(job::DataKind::Generated);
  job.data.train_samples = 0;
  EXPECT_THROW(make_dataset(job, Split::Train), std::invalid_argument);
  job.data.train_samples = -1;
  EXPECT_THROW(make_dataset(job, Split::Train), std::invalid_argument);
  job.data.train_samples = 10;
  job.data.noise = -0.5;
  EXPECT_THROW(make_dataset(job, Split::Train), std::invalid_argument);
}

TEST(Generated, LabelsAreBalanced) {
  const auto dataset = make_dataset(small_job(job::DataKind::Generated), Split::Train);
  const Samples samples = take(*dataset, first_ids(500));
  std::vector<int> counts(10, 0);
  for (const int32_t label : samples.labels) ++counts[static_cast<size_t>(label)];
  EXPECT_EQ(counts, std::vector<int>(10, 50));
}

TEST(Generated, NoiseHasTheAskedSpread) {
  job::Job job = small_job(job::DataKind::Generated);
  const std::vector<int64_t> ids = first_ids(100);
  job.data.noise = 0;
  const Samples clean = take(*make_dataset(job, Split::Train), ids);
  job.data.noise = 0.8;
  Samples noisy = take(*make_dataset(job, Split::Train), ids);
  for (size_t i = 0; i < clean.images.size(); ++i) noisy.images[i] -= clean.images[i];
  EXPECT_NEAR(deviation_of(noisy.images), 0.8, 0.005);
  EXPECT_NEAR(mean_of(noisy.images), 0, 0.005);
}

// The power at low frequencies, which does not change when a pattern is shifted; scaled to length 1.
std::vector<double> spectrum(const float* image, int size) {
  constexpr int kBins = 4;
  std::vector<double> power;
  for (int channel = 0; channel < 3; ++channel) {
    for (int fy = 1 - kBins; fy < kBins; ++fy) {
      for (int fx = 0; fx < kBins; ++fx) {
        double re = 0, im = 0;
        for (int y = 0; y < size; ++y) {
          for (int x = 0; x < size; ++x) {
            const double angle = 2 * M_PI * (fx * x + fy * y) / size;
            re += image[(channel * size + y) * size + x] * std::cos(angle);
            im += image[(channel * size + y) * size + x] * std::sin(angle);
          }
        }
        power.push_back(std::hypot(re, im));
      }
    }
  }
  const double norm = std::sqrt(std::inner_product(power.begin(), power.end(), power.begin(), 0.0));
  for (double& value : power) value /= norm;
  return power;
}

TEST(Generated, ClassesLearnedOnOneSplitHoldOnTheOther) {
  constexpr int kSize = 16, kElements = 3 * kSize * kSize;
  job::Job job = small_job(job::DataKind::Generated);
  job.model.image_size = kSize;
  const Samples train = take(*make_dataset(job, Split::Train), first_ids(200));
  const Samples test = take(*make_dataset(job, Split::Test), first_ids(100));

  std::vector<std::vector<double>> means(10, std::vector<double>(spectrum(train.images.data(), kSize).size(), 0.0));
  for (size_t i = 0; i < train.labels.size(); ++i) {
    std::vector<double>& mean = means[static_cast<size_t>(train.labels[i])];
    const std::vector<double> one = spectrum(&train.images[i * kElements], kSize);
    for (size_t j = 0; j < one.size(); ++j) mean[j] += one[j];
  }
  int right = 0;
  for (size_t i = 0; i < test.labels.size(); ++i) {
    const std::vector<double> one = spectrum(&test.images[i * kElements], kSize);
    std::vector<double> likeness;
    for (const std::vector<double>& mean : means) {
      likeness.push_back(std::inner_product(mean.begin(), mean.end(), one.begin(), 0.0));
    }
    right += std::max_element(likeness.begin(), likeness.end()) - likeness.begin() == test.labels[i];
  }
  EXPECT_GT(right, 80);
}

}  // namespace
}  // namespace millrace::data
