// Several processes with one cache, and what is left of one that is killed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/child_process.h"
#include "cache/sample_entries.h"
#include "millrace/cache/activation_cache.h"
#include "state/temporary_folder.h"

namespace millrace::cache {
namespace {

constexpr FrozenPrefix kThree{3, 77}, kFive{5, 78};
constexpr int64_t kPage = SlotFile::kPage;
constexpr int64_t kBytes = 2 * kPage - 96;

class CacheSharingTest : public state::TemporaryFolder {
 protected:
  CacheOptions options(int64_t samples, int64_t memory_bytes, int64_t disk_bytes) const {
    return {.num_samples = samples, .memory_bytes = memory_bytes, .disk_bytes = disk_bytes, .directory = folder_};
  }
};

Put put(ActivationCache& cache, const FrozenPrefix& prefix, int64_t sample) {
  return cache.put(prefix, sample, 0, entry_of(prefix, sample, 0, kBytes));
}

bool get(ActivationCache& cache, const FrozenPrefix& prefix, int64_t sample) {
  std::vector<std::byte> out(kBytes);
  if (!cache.get(prefix, sample, 0, out)) return false;
  EXPECT_EQ(out, entry_of(prefix, sample, 0, kBytes)) << sample;
  return true;
}

TEST_F(CacheSharingTest, ProcessesSeeEachOthersEntries) {
  ActivationCache cache(options(40, 20 * 2 * kPage, 20 * 2 * kPage));
  cache.open_depth(kThree, kBytes);
  for (int64_t sample = 0; sample < 30; ++sample) ASSERT_EQ(put(cache, kThree, sample), Put::Stored);
  const pid_t child = start_child([&] {
    ActivationCache attached(cache.ticket());
    attached.open_depth(kThree, kBytes);
    for (int64_t sample = 0; sample < 30; ++sample) EXPECT_TRUE(get(attached, kThree, sample));
    for (int64_t sample = 30; sample < 40; ++sample) EXPECT_EQ(put(attached, kThree, sample), Put::Stored);
    EXPECT_EQ(attached.counts().hits_memory, 20);
    EXPECT_EQ(attached.counts().hits_disk, 10);
    attached.open_depth(kFive, kBytes);
    for (int64_t sample = 0; sample < 20; ++sample) EXPECT_EQ(put(attached, kFive, sample), Put::Stored);
    return 0;
  });
  ASSERT_EQ(end_of(child), 0);
  cache.open_depth(kFive, kBytes);
  for (int64_t sample = 0; sample < 40; ++sample) {
    EXPECT_EQ(get(cache, kThree, sample), sample >= 20);
    EXPECT_EQ(get(cache, kFive, sample), sample < 20);
  }
  EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, 40 * 2 * kPage);
  cache.retire(kThree);
  EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, 20 * 2 * kPage);
}

TEST_F(CacheSharingTest, ProcessesPutGetAndDeepenAtTheSameTime) {
  constexpr int64_t kSamples = 50;
  const int64_t memory_bytes = 20 * 2 * kPage, disk_bytes = 20 * 2 * kPage;
  ActivationCache cache(options(kSamples, memory_bytes, disk_bytes));
  const auto work = [&](ActivationCache& mine, unsigned seed) {
    std::mt19937 random(seed);
    for (int layers = 0; layers < 20; ++layers) {
      const FrozenPrefix old{layers, 1}, deeper{layers + 1, 1};
      mine.retire({layers - 1, 1});
      // Another process may be a round ahead or behind; then this one goes without.
      try {
        mine.open_depth(old, kBytes);
        mine.open_depth(deeper, kBytes);
      } catch (const std::invalid_argument&) {
      }
      for (int turn = 0; turn < 200; ++turn) {
        const int64_t sample = static_cast<int64_t>(random() % kSamples);
        if (!get(mine, deeper, sample) && !get(mine, old, sample)) put(mine, old, sample);
        if (random() % 4 == 0) put(mine, deeper, sample);
        EXPECT_LE(mine.counts().memory_bytes, memory_bytes);
        EXPECT_LE(mine.counts().disk_bytes, disk_bytes);
      }
    }
    EXPECT_GT(mine.counts().hits_memory + mine.counts().hits_disk, 0);
    EXPECT_EQ(mine.counts().corrupt, 0);
  };
  std::vector<pid_t> children;
  for (unsigned i = 1; i <= 3; ++i) {
    children.push_back(start_child([&] {
      ActivationCache attached(cache.ticket());
      work(attached, i);
      return 0;
    }));
  }
  work(cache, 0);
  for (const pid_t child : children) EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(bytes_taken_by(descriptors_of(kMemoryFiles)), cache.counts().memory_bytes);
  for (int layers = 0; layers <= 20; ++layers) cache.retire({layers, 1});
  EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, 0);
}

TEST_F(CacheSharingTest, OutlivesItsCreator) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  int reply[2];
  ASSERT_EQ(::pipe(reply), 0);
  const pid_t child = start_child([&] {
    ActivationCache cache(options(10, 5 * 2 * kPage, 5 * 2 * kPage));
    cache.open_depth(kThree, kBytes);
    for (int64_t sample = 0; sample < 10; ++sample) put(cache, kThree, sample);
    const std::string ticket = cache.ticket();
    EXPECT_EQ(::write(pipes[1], ticket.data(), ticket.size()), static_cast<ssize_t>(ticket.size()));
    char done = 0;
    EXPECT_EQ(::read(reply[0], &done, 1), 1);
    return 0;
  });
  char ticket[200] = {};
  ASSERT_GT(::read(pipes[0], ticket, sizeof(ticket) - 1), 0);
  ActivationCache cache{std::string(ticket)};
  ASSERT_EQ(::write(reply[1], "x", 1), 1);
  ASSERT_EQ(end_of(child), 0);
  for (int64_t sample = 0; sample < 10; ++sample) EXPECT_TRUE(get(cache, kThree, sample));
  for (const int end : {pipes[0], pipes[1], reply[0], reply[1]}) ::close(end);
}

TEST_F(CacheSharingTest, ATicketOfSomethingElseIsRefused) {
  const auto cache = std::make_unique<ActivationCache>(options(10, kPage, kPage));
  const std::string ticket = cache->ticket();
  const std::string place = ticket.substr(0, ticket.find(' ', ticket.find(' ') + 1));  // process and descriptor
  EXPECT_THROW(ActivationCache(std::string("no ticket")), std::invalid_argument);
  EXPECT_THROW(ActivationCache(place + " 1 2"), std::runtime_error);
  EXPECT_THROW(ActivationCache(fmt::format("{} 0 1 2", ::getpid())), std::runtime_error);
  EXPECT_THROW(ActivationCache(std::string("999999999 3 1 2")), std::runtime_error);
  EXPECT_NO_THROW(ActivationCache{ticket});
}

TEST_F(CacheSharingTest, NothingIsLeftOfAKilledProcess) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t child = start_child([&] {
    ActivationCache cache(options(10, 5 * 2 * kPage, 5 * 2 * kPage));
    cache.open_depth(kThree, kBytes);
    for (int64_t sample = 0; sample < 10; ++sample) put(cache, kThree, sample);
    EXPECT_EQ(cache.counts().disk_bytes, 5 * 2 * kPage);
    EXPECT_EQ(::write(pipes[1], "x", 1), 1);
    ::pause();
    return 0;
  });
  char ready = 0;
  ASSERT_EQ(::read(pipes[0], &ready, 1), 1);
  EXPECT_EQ(files_in(folder_), 0u);  // not even while it lives
  ::kill(child, SIGKILL);
  EXPECT_EQ(end_of(child), 128 + SIGKILL);
  EXPECT_EQ(files_in(folder_), 0u);
  for (const int end : pipes) ::close(end);
}

}  // namespace
}  // namespace millrace::cache
