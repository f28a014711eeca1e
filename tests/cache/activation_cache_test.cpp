#include "millrace/cache/activation_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/sample_entries.h"
#include "state/temporary_folder.h"

namespace millrace::cache {
namespace {

constexpr FrozenPrefix kThree{3, 77}, kFive{5, 78};
constexpr int64_t kPage = SlotFile::kPage;

class ActivationCacheTest : public state::TemporaryFolder {
 protected:
  CacheOptions options(int64_t samples, int64_t memory_bytes, int64_t disk_bytes = 0) const {
    return {.num_samples = samples, .memory_bytes = memory_bytes, .disk_bytes = disk_bytes, .directory = folder_};
  }
};

Put put(ActivationCache& cache, const FrozenPrefix& prefix, int64_t sample, int64_t bytes, uint64_t augmentation = 0) {
  return cache.put(prefix, sample, augmentation, entry_of(prefix, sample, augmentation, bytes));
}

// A hit must be what was put.
bool get(ActivationCache& cache, const FrozenPrefix& prefix, int64_t sample, int64_t bytes, uint64_t augmentation = 0) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  if (!cache.get(prefix, sample, augmentation, out)) return false;
  EXPECT_EQ(out, entry_of(prefix, sample, augmentation, bytes)) << sample;
  return true;
}

TEST_F(ActivationCacheTest, ReturnsTheBitsThatWerePut) {
  ActivationCache cache(options(100, 50 * 3 * kPage, 100 * 3 * kPage));
  cache.open_depth(kThree, 10001);
  for (int64_t sample = 0; sample < 100; ++sample) {
    EXPECT_FALSE(get(cache, kThree, sample, 10001));
    EXPECT_EQ(put(cache, kThree, sample, 10001), Put::Stored);
    EXPECT_EQ(put(cache, kThree, sample, 10001), Put::Present);
  }
  for (int64_t sample = 99; sample >= 0; --sample) EXPECT_TRUE(get(cache, kThree, sample, 10001));
  const CacheCounts counts = cache.counts();
  EXPECT_EQ(counts.hits_memory, 50);
  EXPECT_EQ(counts.hits_disk, 50);
  EXPECT_EQ(counts.misses, 100);
  EXPECT_EQ(counts.stored, 100);
  EXPECT_EQ(counts.memory_bytes, 50 * 3 * kPage);
  EXPECT_EQ(counts.disk_bytes, 50 * 3 * kPage);
}

TEST_F(ActivationCacheTest, HalfPrecisionHasABoundedError) {
  CacheOptions half = options(20, 10 * kPage, 10 * kPage);
  half.storage = Storage::Half;
  ActivationCache cache(half);
  cache.open_depth(kThree, 1500 * 4);
  const auto value = [](int64_t sample, size_t i) {
    return std::sin(static_cast<float>(i) + static_cast<float>(sample)) * std::exp2(static_cast<float>(i % 40) - 25);
  };
  std::vector<float> values(1500);
  for (int64_t sample = 0; sample < 20; ++sample) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(sample, i);
    EXPECT_EQ(cache.put(kThree, sample, 0, std::as_bytes(std::span(values))), Put::Stored);
  }
  for (int64_t sample = 0; sample < 20; ++sample) {
    ASSERT_TRUE(cache.get(kThree, sample, 0, std::as_writable_bytes(std::span(values))));
    for (size_t i = 0; i < values.size(); ++i) {
      const float wanted = value(sample, i);
      ASSERT_LE(std::abs(values[i] - wanted), std::max(std::abs(wanted) * 0x1p-11f, 0x1p-25f));
    }
  }
  EXPECT_EQ(cache.counts().hits_memory, 10);
  EXPECT_EQ(cache.counts().hits_disk, 10);
}

TEST_F(ActivationCacheTest, WhatHalfPrecisionCannotHoldIsNotKept) {
  CacheOptions half = options(10, 100 * kPage);
  half.storage = Storage::Half;
  std::vector<std::string> notes;
  ActivationCache cache(half, [&](const std::string& note) { notes.push_back(note); });
  cache.open_depth(kThree, 400);
  std::vector<float> values(100, 1.0f);
  EXPECT_EQ(cache.put(kThree, 9, 0, std::as_bytes(std::span(values))), Put::Stored);
  cache.open_depth(kFive, 400);
  values[50] = 1e5f;
  EXPECT_EQ(cache.put(kFive, 9, 0, std::as_bytes(std::span(values))), Put::Dropped);
  EXPECT_EQ(cache.put(kThree, 3, 0, std::as_bytes(std::span(values))), Put::Dropped);
  EXPECT_EQ(cache.put(kThree, 4, 0, std::as_bytes(std::span(values))), Put::Dropped);
  EXPECT_EQ(cache.counts().memory_bytes, kPage);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("sample 9 "), std::string::npos) << notes[0];
  EXPECT_FALSE(cache.get(kThree, 3, 0, std::as_writable_bytes(std::span(values))));
  EXPECT_TRUE(cache.get(kThree, 9, 0, std::as_writable_bytes(std::span(values))));  // the old entry is still there
}

TEST_F(ActivationCacheTest, DataOfFourTimesTheMemorySpillsAndStaysWithinBothBudgets) {
  constexpr int64_t kBytes = 5 * kPage - 100, kSamples = 400;
  const int64_t memory_bytes = 100 * 5 * kPage + 4000, disk_bytes = 200 * 5 * kPage + kPage;
  ActivationCache cache(options(kSamples, memory_bytes, disk_bytes));
  cache.open_depth(kThree, kBytes);
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    put(cache, kThree, sample, kBytes);
    EXPECT_LE(cache.counts().memory_bytes, memory_bytes);
    EXPECT_LE(cache.counts().disk_bytes, disk_bytes);
  }
  EXPECT_EQ(bytes_taken_by(descriptors_of(kMemoryFiles)), cache.counts().memory_bytes);
  int64_t hits = 0;
  for (int64_t sample = 0; sample < kSamples; ++sample) hits += get(cache, kThree, sample, kBytes);
  EXPECT_EQ(hits, 300);
  EXPECT_EQ(cache.counts().hits_memory, 100);
  EXPECT_EQ(cache.counts().hits_disk, 200);
  EXPECT_EQ(cache.counts().dropped, 100);
}

TEST_F(ActivationCacheTest, WithoutAnyBudgetEverythingIsDropped) {
  ActivationCache cache(CacheOptions{.num_samples = 4});
  cache.open_depth(kThree, 100);
  EXPECT_EQ(put(cache, kThree, 0, 100), Put::Dropped);
  EXPECT_FALSE(get(cache, kThree, 0, 100));
}

TEST_F(ActivationCacheTest, OtherWeightsLayersOrAugmentationsNeverMatch) {
  ActivationCache cache(options(4, 100 * kPage));
  cache.open_depth(kThree, 100);
  EXPECT_EQ(put(cache, kThree, 1, 100, 6), Put::Stored);
  EXPECT_TRUE(get(cache, kThree, 1, 100, 6));
  EXPECT_FALSE(get(cache, kThree, 1, 100, 7));
  EXPECT_FALSE(get(cache, {3, 78}, 1, 100, 6));
  EXPECT_FALSE(get(cache, {4, 77}, 1, 100, 6));
  EXPECT_EQ(put(cache, {4, 77}, 1, 100), Put::Dropped);
}

TEST_F(ActivationCacheTest, AnotherAugmentationTakesThePlace) {
  ActivationCache cache(options(4, kPage, 3 * kPage));
  cache.open_depth(kThree, 100);
  for (int64_t sample = 0; sample < 4; ++sample) put(cache, kThree, sample, 100, 1);
  for (int64_t sample = 0; sample < 4; ++sample) EXPECT_EQ(put(cache, kThree, sample, 100, 2), Put::Stored);
  for (int64_t sample = 0; sample < 4; ++sample) {
    EXPECT_TRUE(get(cache, kThree, sample, 100, 2));
    EXPECT_FALSE(get(cache, kThree, sample, 100, 1));
  }
  EXPECT_EQ(cache.counts().memory_bytes, kPage);
  EXPECT_EQ(cache.counts().disk_bytes, 3 * kPage);
}

// Deepening in place: every entry is read at the old depth, and its room is the new one's, although nothing is free.
TEST_F(ActivationCacheTest, ADeeperPrefixTakesTheRoomOfTheOldOneSampleBySample) {
  constexpr int64_t kSamples = 60;
  for (const int64_t pages : {4, 3, 1}) {
    ActivationCache cache(options(kSamples, 20 * 4 * kPage, 40 * 4 * kPage));
    cache.open_depth(kThree, 4 * kPage);
    for (int64_t sample = 0; sample < kSamples; ++sample) put(cache, kThree, sample, 4 * kPage);
    cache.open_depth(kFive, pages * kPage);
    for (int64_t step = 0; step < kSamples; ++step) {
      const int64_t sample = step * 7 % kSamples;
      EXPECT_FALSE(get(cache, kFive, sample, pages * kPage));
      EXPECT_TRUE(get(cache, kThree, sample, 4 * kPage));
      EXPECT_EQ(put(cache, kFive, sample, pages * kPage), Put::Stored);
      EXPECT_FALSE(get(cache, kThree, sample, 4 * kPage));
      EXPECT_LE(cache.counts().memory_bytes, 20 * 4 * kPage);
      EXPECT_LE(cache.counts().disk_bytes, 40 * 4 * kPage);
      EXPECT_EQ(bytes_taken_by(descriptors_of(kMemoryFiles)), cache.counts().memory_bytes);
    }
    for (int64_t sample = 0; sample < kSamples; ++sample) EXPECT_TRUE(get(cache, kFive, sample, pages * kPage));
    EXPECT_EQ(cache.counts().evicted, kSamples);
    EXPECT_EQ(cache.counts().dropped, 0);
    EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, kSamples * pages * kPage);
    if (pages < 4) {
      EXPECT_GT(cache.counts().hits_memory, cache.counts().hits_disk / 2);
    }
  }
}

TEST_F(ActivationCacheTest, TheOldEntryStaysWhereTheDeeperHasNoRoom) {
  ActivationCache cache(options(4, 4 * 2 * kPage));
  cache.open_depth(kThree, 2 * kPage);
  for (int64_t sample = 0; sample < 4; ++sample) put(cache, kThree, sample, 2 * kPage);
  cache.open_depth(kFive, 3 * kPage);
  EXPECT_EQ(put(cache, kFive, 0, 3 * kPage), Put::Dropped);
  EXPECT_TRUE(get(cache, kThree, 0, 2 * kPage));
  EXPECT_EQ(cache.counts().memory_bytes, 4 * 2 * kPage);
}

TEST_F(ActivationCacheTest, RetiringADepthFreesAllOfIt) {
  ActivationCache cache(options(40, 20 * kPage, 20 * kPage));
  for (int round = 0; round < 3; ++round) {
    const FrozenPrefix prefix{round, 9};
    cache.open_depth(prefix, 3000 + round);
    for (int64_t sample = 0; sample < 40; ++sample) EXPECT_EQ(put(cache, prefix, sample, 3000 + round), Put::Stored);
    for (int64_t sample = 0; sample < 40; ++sample) EXPECT_TRUE(get(cache, prefix, sample, 3000 + round));
    cache.retire(prefix);
    cache.retire(prefix);
    EXPECT_FALSE(get(cache, prefix, 0, 3000 + round));
    EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, 0);
    EXPECT_EQ(cache.counts().evicted, 40 * (round + 1));
    EXPECT_EQ(bytes_taken_by(descriptors_of(kMemoryFiles)), 0);
    EXPECT_EQ(bytes_taken_by(descriptors_of(folder_.string())), 0);
  }
}

TEST_F(ActivationCacheTest, RefusesWhatCannotBe) {
  EXPECT_THROW(ActivationCache(CacheOptions{.num_samples = 0}), std::invalid_argument);
  EXPECT_THROW(ActivationCache(CacheOptions{.num_samples = 1, .memory_bytes = -1}), std::invalid_argument);
  EXPECT_THROW(ActivationCache(CacheOptions{.num_samples = 1, .disk_bytes = 100}), std::invalid_argument);
  ActivationCache cache(options(10, 100 * kPage));
  EXPECT_THROW(cache.open_depth(kThree, 0), std::invalid_argument);
  cache.open_depth(kThree, 100);
  EXPECT_NO_THROW(cache.open_depth(kThree, 100));
  EXPECT_THROW(cache.open_depth(kThree, 200), std::invalid_argument);
  cache.open_depth(kFive, 100);
  EXPECT_THROW(cache.open_depth({7, 1}, 100), std::invalid_argument);
  cache.retire(kThree);
  EXPECT_NO_THROW(cache.open_depth({7, 1}, 100));
  EXPECT_THROW(put(cache, kFive, 10, 100), std::invalid_argument);
  EXPECT_THROW(put(cache, kFive, 0, 99), std::invalid_argument);
  EXPECT_THROW(get(cache, kFive, -1, 100), std::invalid_argument);
}

TEST_F(ActivationCacheTest, TwoInOneDirectoryKnowNothingOfEachOther) {
  ActivationCache first(options(20, kPage, 20 * kPage)), second(options(20, kPage, 20 * kPage));
  first.open_depth(kThree, 1000);
  second.open_depth(kThree, 1000);
  for (int64_t sample = 0; sample < 20; ++sample) EXPECT_EQ(put(first, kThree, sample, 1000), Put::Stored);
  for (int64_t sample = 0; sample < 20; ++sample) EXPECT_FALSE(get(second, kThree, sample, 1000));
  const std::vector<std::byte> other(1000, std::byte{1});
  for (int64_t sample = 0; sample < 20; ++sample) EXPECT_EQ(second.put(kThree, sample, 0, other), Put::Stored);
  for (int64_t sample = 0; sample < 20; ++sample) EXPECT_TRUE(get(first, kThree, sample, 1000));
}

}  // namespace
}  // namespace millrace::cache
