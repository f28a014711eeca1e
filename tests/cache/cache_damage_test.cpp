// What a cache does about disks that fail, fill up, or return other bytes than were written.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "cache/child_process.h"
#include "cache/sample_entries.h"
#include "millrace/cache/activation_cache.h"
#include "state/temporary_folder.h"

namespace millrace::cache {
namespace {

constexpr FrozenPrefix kPrefix{3, 77};
constexpr int64_t kPage = SlotFile::kPage;
constexpr int64_t kBytes = 2 * kPage - 96;

class CacheDamageTest : public state::TemporaryFolder {
 protected:
  CacheOptions options(int64_t samples, int64_t memory_bytes, int64_t disk_bytes) const {
    return {.num_samples = samples, .memory_bytes = memory_bytes, .disk_bytes = disk_bytes, .directory = folder_};
  }
};

Put put(ActivationCache& cache, int64_t sample) {
  return cache.put(kPrefix, sample, 0, entry_of(kPrefix, sample, 0, kBytes));
}

bool get(ActivationCache& cache, int64_t sample) {
  std::vector<std::byte> out(kBytes);
  if (!cache.get(kPrefix, sample, 0, out)) return false;
  EXPECT_EQ(out, entry_of(kPrefix, sample, 0, kBytes)) << sample;
  return true;
}

// Changes one bit of every slot in the files.
void damage(const std::vector<int>& descriptors, std::mt19937& random) {
  for (const int descriptor : descriptors) {
    struct stat status {};
    ASSERT_EQ(::fstat(descriptor, &status), 0);
    for (off_t slot = 0; slot < status.st_size; slot += 2 * kPage) {
      const off_t at = slot + static_cast<off_t>(random() % kBytes);
      unsigned char byte = 0;
      ASSERT_EQ(::pread(descriptor, &byte, 1, at), 1);
      byte = static_cast<unsigned char>(byte ^ 1u << random() % 8);
      ASSERT_EQ(::pwrite(descriptor, &byte, 1, at), 1);
    }
  }
}

TEST_F(CacheDamageTest, EveryChangedBitIsFoundInBothTiers) {
  constexpr int64_t kSamples = 64;
  ActivationCache cache(options(kSamples, 32 * 2 * kPage, 32 * 2 * kPage));
  cache.open_depth(kPrefix, kBytes);
  std::mt19937 random(5);
  for (int64_t round = 1; round <= 20; ++round) {
    for (int64_t sample = 0; sample < kSamples; ++sample) ASSERT_EQ(put(cache, sample), Put::Stored);
    for (int64_t sample = 0; sample < kSamples; ++sample) ASSERT_TRUE(get(cache, sample));
    damage(descriptors_of(folder_.string()), random);
    damage(descriptors_of(kMemoryFiles), random);
    for (int64_t sample = 0; sample < kSamples; ++sample) ASSERT_FALSE(get(cache, sample)) << sample;
    EXPECT_EQ(cache.counts().corrupt, round * kSamples);
    EXPECT_EQ(cache.counts().misses, round * kSamples);
    EXPECT_EQ(cache.counts().memory_bytes + cache.counts().disk_bytes, 0);  // a bad entry keeps no room
  }
}

TEST_F(CacheDamageTest, ACutFileIsAMiss) {
  ActivationCache cache(options(16, 0, 16 * 2 * kPage));
  cache.open_depth(kPrefix, kBytes);
  for (int64_t sample = 0; sample < 16; ++sample) ASSERT_EQ(put(cache, sample), Put::Stored);
  for (const int descriptor : descriptors_of(folder_.string())) ASSERT_EQ(::ftruncate(descriptor, 100), 0);
  for (int64_t sample = 0; sample < 16; ++sample) EXPECT_FALSE(get(cache, sample));
  EXPECT_EQ(cache.counts().corrupt, 16);
}

// Puts until nothing goes in any more: one note, and what was stored before stays.
void fill_beyond_the_disk(ActivationCache& cache, const std::vector<std::string>& notes, const char* reason,
                          int64_t samples) {
  cache.open_depth(kPrefix, kBytes);
  std::vector<bool> is_stored;
  for (int64_t sample = 0; sample < samples; ++sample) is_stored.push_back(put(cache, sample) == Put::Stored);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find(reason), std::string::npos) << notes[0];
  EXPECT_NE(notes[0].find("on disk"), std::string::npos) << notes[0];
  int64_t hits = 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const bool hit = get(cache, sample);
    EXPECT_EQ(hit, is_stored[static_cast<size_t>(sample)]) << sample;
    hits += hit;
  }
  const CacheCounts counts = cache.counts();
  EXPECT_GT(counts.hits_disk, 0);
  EXPECT_EQ(counts.dropped, samples - hits);
  EXPECT_EQ(counts.memory_bytes + counts.disk_bytes, hits * 2 * kPage);
}

TEST_F(CacheDamageTest, AFileThatMayNotGrowClosesTheDiskTierOnly) {
  const pid_t child = start_child([&] {
    std::vector<std::string> notes;
    ActivationCache cache(options(200, 10 * 2 * kPage, 200 * 2 * kPage),
                          [&](const auto& note) { notes.push_back(note); });
    const rlimit limit{8 * 2 * kPage, RLIM_INFINITY};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    fill_beyond_the_disk(cache, notes, "File too large", 200);
    return 0;
  });
  EXPECT_EQ(end_of(child), 0);
}

TEST_F(CacheDamageTest, AFullDiskClosesTheDiskTierOnly) {
  const pid_t child = start_child([&] {
    if (!mount_for_itself(folder_, "tmpfs", "size=200k")) return kSkipped;
    std::vector<std::string> notes;
    ActivationCache cache(options(200, 10 * 2 * kPage, 200 * 2 * kPage),
                          [&](const auto& note) { notes.push_back(note); });
    fill_beyond_the_disk(cache, notes, "No space left on device", 200);
    return 0;
  });
  const int code = end_of(child);
  if (code == kSkipped) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(code, 0);
}

// ramfs gives nothing back of a file but its end, as NFS does.
TEST_F(CacheDamageTest, WhereSlotsCannotBeFreedTheyStayCountedUntilTheirDepthIsRetired) {
  const pid_t child = start_child([&] {
    if (!mount_for_itself(folder_, "ramfs", nullptr)) return kSkipped;
    constexpr FrozenPrefix kDeeper{5, 78};
    ActivationCache cache(options(10, 0, 10 * 2 * kPage));
    cache.open_depth(kPrefix, kBytes);
    for (int64_t sample = 0; sample < 9; ++sample) EXPECT_EQ(put(cache, sample), Put::Stored);
    cache.open_depth(kDeeper, kBytes);
    const std::vector<std::byte> entry = entry_of(kDeeper, 0, 0, kBytes);
    EXPECT_EQ(cache.put(kDeeper, 0, 0, entry), Put::Stored);
    EXPECT_EQ(cache.put(kDeeper, 1, 0, entry), Put::Dropped);
    for (int64_t sample = 0; sample < 9; ++sample) EXPECT_TRUE(get(cache, sample));
    EXPECT_EQ(cache.counts().disk_bytes, 10 * 2 * kPage);
    std::mt19937 random(6);
    damage(descriptors_of(folder_.string()), random);
    for (int64_t sample = 0; sample < 9; ++sample) EXPECT_FALSE(get(cache, sample));
    EXPECT_EQ(cache.counts().disk_bytes, 10 * 2 * kPage);
    EXPECT_EQ(put(cache, 0), Put::Dropped);
    cache.retire(kPrefix);
    EXPECT_EQ(cache.counts().disk_bytes, 2 * kPage);
    EXPECT_EQ(cache.put(kDeeper, 1, 0, entry), Put::Stored);
    return 0;
  });
  const int code = end_of(child);
  if (code == kSkipped) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace millrace::cache
