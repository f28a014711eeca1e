// Threads that put, get and deepen as they like: every hit is what was put, and the budgets hold at every moment.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "cache/sample_entries.h"
#include "millrace/cache/activation_cache.h"
#include "state/temporary_folder.h"

namespace millrace::cache {
namespace {

constexpr int64_t kPage = SlotFile::kPage;
constexpr int64_t kSamples = 48, kMemoryBytes = 30 * kPage, kDiskBytes = 25 * kPage;

FrozenPrefix prefix_of(int layers) { return {layers, static_cast<uint64_t>(layers) * 31}; }
int64_t bytes_of(int layers) { return (1 + layers % 3) * kPage - 8 * layers; }

class CacheThreadsTest : public state::TemporaryFolder {
 protected:
  CacheOptions options() const {
    return {.num_samples = kSamples,
            .memory_bytes = kMemoryBytes,
            .disk_bytes = kDiskBytes,
            .directory = folder_,
            .storage = Storage::AsGiven};
  }

  // One call after another, against what entries must be.
  static void call_at_random(ActivationCache& cache, const std::atomic<int>& layers, std::mt19937& random) {
    const int at = layers.load() + static_cast<int>(random() % 2);
    const int64_t sample = static_cast<int64_t>(random() % kSamples);
    const uint64_t augmentation = random() % 8 == 0;
    const std::vector<std::byte> entry = entry_of(prefix_of(at), sample, augmentation, bytes_of(at));
    if (random() % 2 == 0) {
      cache.put(prefix_of(at), sample, augmentation, entry);
    } else {
      std::vector<std::byte> out(entry.size());
      if (cache.get(prefix_of(at), sample, augmentation, out)) {
        EXPECT_EQ(out, entry);
      }
    }
    const CacheCounts counts = cache.counts();
    EXPECT_LE(counts.memory_bytes, kMemoryBytes);
    EXPECT_LE(counts.disk_bytes, kDiskBytes);
    EXPECT_GE(counts.memory_bytes, 0);
    EXPECT_GE(counts.disk_bytes, 0);
  }
};

TEST_F(CacheThreadsTest, PutGetAndDeepenAtRandom) {
  ActivationCache cache(options());
  std::atomic<int> layers{0};
  std::atomic<int64_t> calls{0};
  std::atomic<bool> stop{false};
  cache.open_depth(prefix_of(0), bytes_of(0));
  cache.open_depth(prefix_of(1), bytes_of(1));
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      for (; !stop; ++calls) call_at_random(cache, layers, random);
    });
  }
  for (int next = 2; next < 30; ++next) {
    while (calls < (next - 1) * 500) std::this_thread::yield();
    cache.retire(prefix_of(next - 2));
    cache.open_depth(prefix_of(next), bytes_of(next));
    layers = next - 1;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();

  const CacheCounts counts = cache.counts();
  EXPECT_GT(counts.hits_memory, 0);
  EXPECT_GT(counts.hits_disk, 0);
  EXPECT_GT(counts.evicted, 0);
  EXPECT_GT(counts.dropped, 0);
  EXPECT_EQ(counts.corrupt, 0);
  EXPECT_EQ(bytes_taken_by(descriptors_of(kMemoryFiles)), counts.memory_bytes);
  cache.retire(prefix_of(28));
  cache.retire(prefix_of(29));
  EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, 0);
  EXPECT_EQ(bytes_taken_by(descriptors_of(kMemoryFiles)), 0);
}

// The epoch in which a run deepens its cache: nothing is lost, although there is room for one depth only.
TEST_F(CacheThreadsTest, DeepeningByManyThreadsLosesNothing) {
  ActivationCache cache(CacheOptions{.num_samples = kSamples,
                                     .memory_bytes = 20 * kPage,
                                     .disk_bytes = (kSamples - 20) * kPage,
                                     .directory = folder_});
  const auto bytes = static_cast<size_t>(kPage);
  for (int depth = 0; depth < 10; ++depth) {
    const FrozenPrefix old = prefix_of(depth), deeper = prefix_of(depth + 1);
    cache.open_depth(old, kPage);
    if (depth == 0) {
      for (int64_t sample = 0; sample < kSamples; ++sample) cache.put(old, sample, 0, entry_of(old, sample, 0, kPage));
    }
    cache.open_depth(deeper, kPage);
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        std::vector<std::byte> out(bytes);
        for (int64_t sample = next++; sample < kSamples; sample = next++) {
          EXPECT_TRUE(cache.get(old, sample, 0, out));
          EXPECT_EQ(out, entry_of(old, sample, 0, kPage));
          EXPECT_EQ(cache.put(deeper, sample, 0, entry_of(deeper, sample, 0, kPage)), Put::Stored);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    cache.retire(old);
    EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, kSamples * kPage);
  }
  EXPECT_EQ(cache.counts().dropped, 0);
  EXPECT_EQ(cache.counts().misses, 0);
}

}  // namespace
}  // namespace millrace::cache
