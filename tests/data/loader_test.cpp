#include "millrace/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "millrace/data/image_format.h"

namespace millrace::data {
namespace {

// Sample i has the label i and pixels that say which sample and epoch they are of.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t size, int64_t elements = 5) : size_(size), elements_(elements) {}
  int64_t size() const override { return size_; }
  int64_t feature_bytes() const override { return elements_ * int64_t{sizeof(float)}; }
  std::unique_ptr<Reader> reader() const override { return std::make_unique<StatelessReader<Counting>>(*this); }
  void fill(std::span<const int64_t> samples, int64_t epoch, float* images, int32_t* labels) const {
    if (++fills_ == fail_at_) throw std::runtime_error("sample 3 cannot be read");
    if (slow_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    samples_ += static_cast<int64_t>(samples.size());
    for (const int64_t sample : samples) {
      if (labels) *labels++ = static_cast<int32_t>(sample);
      for (int64_t i = 0; images && i < elements_; ++i) *images++ = static_cast<float>(1 + 1000 * epoch + sample);
    }
  }

  mutable std::atomic<int> fills_{0};
  mutable std::atomic<int64_t> samples_{0};
  int fail_at_ = 0;
  bool slow_ = false;

 private:
  int64_t size_, elements_;
};

class OneBatch : public Counting {
 public:
  using Counting::Counting;
  bool one_fixed_batch() const override { return true; }
};

std::span<const float> pixels_of(const Batch& batch) {
  return {reinterpret_cast<const float*>(batch.features.data()), batch.features.size() / sizeof(float)};
}

TEST(Loader, EachSampleComesOncePerEpoch) {
  for (const auto& [size, batch] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 4}, {7, 3}, {8, 4}, {13, 5}, {31, 32}, {33, 32}, {100, 7}, {257, 16}}) {
    const Counting dataset(size);
    Loader loader(dataset, {.batch = batch, .seed = 9});
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<int64_t> seen;
      for (int64_t index = 0; index < loader.batches_per_epoch(); ++index) {
        const Batch& got = loader.next();
        EXPECT_EQ(got.epoch, epoch);
        EXPECT_EQ(got.index, index);
        EXPECT_EQ(static_cast<int64_t>(got.samples.size()), got.rows);
        EXPECT_EQ(got.rows, std::min(batch, size - index * batch));
        seen.insert(got.samples.begin(), got.samples.end());
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
      EXPECT_EQ(static_cast<int64_t>(std::set<int64_t>(seen.begin(), seen.end()).size()), size);
    }
  }
}

TEST(Loader, WhatIsSeenAheadIsWhatComesNext) {
  const Counting dataset(11);
  Loader loader(dataset, {.batch = 4, .num_batches = 5, .ahead = 2});
  for (int i = 0; i < 5; ++i) {
    const Batch* ahead = nullptr;
    while (!(ahead = loader.peek())) std::this_thread::yield();
    const std::vector<int64_t> samples(ahead->samples.begin(), ahead->samples.end());
    const std::byte* features = ahead->features_from(0);
    const Batch& next = loader.next();
    EXPECT_EQ(std::vector<int64_t>(next.samples.begin(), next.samples.end()), samples);
    EXPECT_EQ(next.features_from(0), features);
    EXPECT_EQ(&next, ahead);
  }
  EXPECT_EQ(loader.peek(), nullptr);
}

TEST(Loader, ShortBatchEndsInZerosAndNoLabels) {
  const Counting dataset(7);
  Loader loader(dataset, {.batch = 4});
  for (int i = 0; i < 6; ++i) {
    const Batch& batch = loader.next();
    ASSERT_EQ(pixels_of(batch).size(), 4u * 5u);
    ASSERT_EQ(batch.labels.size(), 4u);
    for (int64_t row = 0; row < 4; ++row) {
      const bool valid = row < batch.rows;
      const float pixel = valid ? static_cast<float>(1 + 1000 * batch.epoch + batch.samples[row]) : 0.0f;
      EXPECT_EQ(batch.labels[row], valid ? batch.samples[row] : kNoLabel);
      for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(pixels_of(batch)[row * 5 + j], pixel);
    }
  }
}

TEST(Loader, BatchStaysWholeUntilTheNextIsAskedFor) {
  const Counting dataset(64, 1000);
  Loader loader(dataset, {.batch = 4});
  for (int i = 0; i < 40; ++i) {
    const Batch& batch = loader.next();
    if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (int64_t row = 0; row < 4; ++row) {
      const auto expected = static_cast<float>(1 + 1000 * batch.epoch + batch.samples[row]);
      EXPECT_TRUE(std::all_of(&pixels_of(batch)[row * 1000], &pixels_of(batch)[row * 1000] + 1000,
                              [&](float x) { return x == expected; }));
    }
  }
}

TEST(Loader, BuffersAreTheSameForEver) {
  for (int ahead : {1, 2, 5}) {
    const Counting dataset(10);
    const LoaderOptions options{.batch = 4, .threads = 3, .ahead = ahead};
    Loader loader(dataset, options);
    std::set<const std::byte*> buffers;
    for (int i = 0; i < 20; ++i) buffers.insert(loader.next().features.data());
    EXPECT_EQ(buffers.size(), static_cast<size_t>(1 + ahead));
    EXPECT_EQ(Loader::buffer_bytes(dataset, options), (1 + ahead) * 4 * (5 * 4 + 4 + 2 * 8));
  }
}

TEST(Loader, AnyNumberOfThreadsGivesTheSameBatches) {
  const Counting dataset(103, 7);
  for (int threads : {2, 3, 8}) {
    for (int ahead : {1, 3}) {
      Loader one(dataset, {.batch = 10, .seed = 4});
      Loader many(dataset, {.batch = 10, .seed = 4, .threads = threads, .ahead = ahead});
      for (int i = 0; i < 40; ++i) {
        const Batch &a = one.next(), &b = many.next();
        EXPECT_EQ(a.epoch, b.epoch);
        EXPECT_TRUE(std::equal(a.samples.begin(), a.samples.end(), b.samples.begin(), b.samples.end()));
        EXPECT_TRUE(std::equal(a.labels.begin(), a.labels.end(), b.labels.begin(), b.labels.end()));
        EXPECT_TRUE(std::equal(a.features.begin(), a.features.end(), b.features.begin(), b.features.end()));
      }
    }
  }
}

TEST(Loader, LoadsNoMoreThanItWasMadeFor) {
  const Counting dataset(100);
  {
    Loader loader(dataset, {.batch = 5, .num_batches = 3, .threads = 2, .ahead = 8});
    for (int i = 0; i < 3; ++i) loader.next();
    EXPECT_THROW(loader.next(), std::runtime_error);
  }
  EXPECT_EQ(dataset.samples_, 15);
}

TEST(Loader, UnshuffledSamplesComeInOrder) {
  const Counting dataset(5);
  Loader loader(dataset, {.batch = 2, .shuffle = false});
  std::vector<int64_t> seen;
  for (int i = 0; i < 3; ++i) {
    const Batch& batch = loader.next();
    seen.insert(seen.end(), batch.samples.begin(), batch.samples.end());
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(Loader, ResumedRunGoesOnWhereTheFirstStopped) {
  const Counting dataset(13);
  Loader whole(dataset, {.batch = 4, .seed = 2});
  for (int i = 0; i < 6; ++i) whole.next();
  Loader resumed(dataset, {.batch = 4, .seed = 2, .first_batch = 6});
  for (int i = 0; i < 6; ++i) {
    const Batch& a = whole.next();
    const Batch& b = resumed.next();
    EXPECT_EQ(a.epoch, b.epoch);
    EXPECT_EQ(a.index, b.index);
    EXPECT_TRUE(std::equal(a.labels.begin(), a.labels.end(), b.labels.begin()));
  }
}

TEST(Loader, FixedBatchIsMadeOnceAndNeverCopied) {
  const OneBatch dataset(6);
  Loader loader(dataset, {.batch = 6});
  const std::byte* features = loader.next().features.data();
  for (int64_t i = 1; i < 10; ++i) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.features.data(), features);
    EXPECT_EQ(batch.rows, 6);
    EXPECT_EQ(batch.epoch, i);
  }
  EXPECT_EQ(dataset.fills_, 1);
  EXPECT_EQ(Loader::buffer_bytes(dataset, {.batch = 6}), 6 * (5 * 4 + 4 + 2 * 8));
}

TEST(Loader, FailureInTheThreadReachesTheCaller) {
  Counting dataset(100);
  dataset.fail_at_ = 9;  // in the third batch: each comes in four pieces
  Loader loader(dataset, {.batch = 4});
  loader.next();
  loader.next();
  for (int i = 0; i < 2; ++i) {
    try {
      loader.next();
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "sample 3 cannot be read");
    }
  }
}

TEST(Loader, WaitingIsCounted) {
  Counting slow(100);
  slow.slow_ = true;
  Loader loader(slow, {.batch = 10});
  for (int i = 0; i < 3; ++i) loader.next();
  EXPECT_GT(loader.waited_s(), 0.02);
  EXPECT_LT(loader.waited_s(), 5);
}

TEST(Loader, StopsWhetherOrNotBatchesWereTaken) {
  const Counting dataset(100);
  for (int taken = 0; taken < 4; ++taken) {
    Loader loader(dataset, {.batch = 4});
    for (int i = 0; i < taken; ++i) loader.next();
  }
}

TEST(Loader, ImpossibleBatchesAreRefused) {
  const Counting dataset(10), empty(0);
  EXPECT_THROW(Loader(dataset, {.batch = 0}), std::invalid_argument);
  EXPECT_THROW(Loader(empty, {.batch = 4}), std::invalid_argument);
  EXPECT_THROW(Loader(OneBatch(6), {.batch = 4}), std::invalid_argument);
}

// A shortcut that knows what sample i is: a row of bytes i.
struct Known {
  explicit Known(int64_t unknown = -1) {
    shortcut.row_bytes = 3;
    shortcut.which = [](int64_t epoch) { return epoch == 0 ? 0 : 2; };
    shortcut.bytes_of_row = [](int) { return size_t{3}; };
    shortcut.fetch = [unknown](int which, int64_t sample, int64_t, std::span<std::byte> row) {
      std::fill(row.begin(), row.end(), static_cast<std::byte>(sample));
      return which == 2 && sample != unknown;
    };
  }
  Shortcut shortcut;
};

TEST(Loader, TakesAShortcutInsteadOfReadingFeatures) {
  const Counting data(10);
  const Known known;
  Loader loader(data, {.batch = 4, .seed = 3, .threads = 2, .ahead = 2, .shortcut = &known.shortcut});
  for (int batch = 0; batch < 3; ++batch) EXPECT_EQ(loader.next().shortcut, 0) << "not in the first epoch";
  for (int index = 0; index < 9; ++index) {
    const Batch& batch = loader.next();
    ASSERT_EQ(batch.shortcut, 2);
    for (size_t row = 0; row < 4; ++row) {
      const int64_t sample = row < batch.samples.size() ? batch.samples[row] : 0;
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.shortened[3 * row + i], static_cast<std::byte>(sample));
      EXPECT_EQ(batch.labels[row], row < batch.samples.size() ? static_cast<int32_t>(sample) : kNoLabel);
    }
  }
}

TEST(Loader, ReadsAllFeaturesOfABatchWithASampleThatIsNotKnown) {
  const Counting data(10);
  const Known known(7);
  Loader loader(data, {.batch = 4, .seed = 3, .threads = 3, .ahead = 2, .shortcut = &known.shortcut});
  for (int index = 0; index < 30; ++index) {
    const Batch& batch = loader.next();
    const bool has_unknown = std::find(batch.samples.begin(), batch.samples.end(), 7) != batch.samples.end();
    EXPECT_EQ(batch.shortcut, batch.epoch == 0 || has_unknown ? 0 : 2);
    if (batch.shortcut > 0) continue;
    for (size_t row = 0; row < batch.samples.size(); ++row) {
      EXPECT_EQ(pixels_of(batch)[5 * row], static_cast<float>(1 + 1000 * batch.epoch + batch.samples[row]));
    }
  }
}

}  // namespace
}  // namespace millrace::data
