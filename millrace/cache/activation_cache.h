// The outputs of a frozen prefix, sample by sample, so that they are not computed again in the next epoch: in memory
// first, then on disk, each within its budget. A cache may lose anything at any time - full, damaged, being written -
// and then says miss; what it returns is what was put, or fails its checksum and is a miss too.
//
// Where more layers are frozen, a deeper prefix is opened beside the one that is read. Putting a sample's entry there
// gives the space of its old one free, in place: both depths together stay within the budgets.
//
// Threads call get and put at the same time; no lock is held while entries are copied, and nobody waits for anybody.
// Processes of a host share a cache by the creator's ticket. Nothing has a name in any file system, so nothing is left
// of a run that is killed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/cache/cache_table.h"
#include "millrace/cache/slot_file.h"

namespace millrace::cache {

// What computed an entry. Other weights, or another number of layers, never match.
struct FrozenPrefix {
  int layers = 0;
  uint64_t weights = 0;  // identity of the frozen weights
};

enum class Storage {
  AsGiven,  // bit by bit, whatever the bytes are
  Half,     // floats, as sixteen bits (half.h); entries with larger values are not kept
};

struct CacheOptions {
  int64_t num_samples = 0;
  // Of entries, each rounded up to whole pages of 4096 bytes. Beside them, 24 bytes of memory for every sample put.
  int64_t memory_bytes = 0;
  int64_t disk_bytes = 0;
  std::filesystem::path directory = {};  // of the disk tier; made if it is not there
  Storage storage = Storage::AsGiven;
};

// What a run should say, once each: a tier takes nothing more, values are too large. From any thread, in the middle of
// a put: it must not throw, nor call the cache.
using OnCacheNote = std::function<void(const std::string&)>;

struct CacheCounts {
  // Of this process's calls.
  int64_t hits_memory = 0, hits_disk = 0;
  int64_t misses = 0;   // with those that were corrupt
  int64_t corrupt = 0;  // checksum or read failed
  int64_t stored = 0;
  int64_t dropped = 0;  // puts that came to nothing
  int64_t evicted = 0;  // entries that a deeper one replaced, and those of retired depths
  // Of all processes that share the cache, now.
  int64_t memory_bytes = 0, disk_bytes = 0;
};

enum class Put {
  Stored,
  Present,  // it is there already, or somebody is writing it
  Dropped,
};

class ActivationCache {
 public:
  // Throws std::invalid_argument for options that cannot work, std::runtime_error for a directory that cannot.
  explicit ActivationCache(const CacheOptions& options, OnCacheNote on_note = {});
  // The cache of another process of this user and host, which must live until this returns; whatever it was made
  // with, budgets included, is shared. Throws std::runtime_error where it cannot be reached (another container).
  explicit ActivationCache(const std::string& ticket, OnCacheNote on_note = {});

  const std::string& ticket() const { return table_.ticket(); }

  // At most two depths are open. Opening what is open changes nothing, so all processes may do it.
  void open_depth(const FrozenPrefix& prefix, int64_t bytes_per_entry);
  // Frees all its entries, once calls that are using it are through; no depth of that name: nothing.
  void retire(const FrozenPrefix& prefix);

  // The augmentation says how the sample's input was made; there is one entry for a sample at a depth, and one with
  // another augmentation is replaced. At the deeper depth, the sample's entry at the other is given up for it.
  // A depth that is not open: dropped, and a miss. With Storage::Half, entries lie as floats do.
  Put put(const FrozenPrefix& prefix, int64_t sample, uint64_t augmentation, std::span<const std::byte> entry);
  // True: `out` holds the entry. False: `out` may hold anything.
  bool get(const FrozenPrefix& prefix, int64_t sample, uint64_t augmentation, std::span<std::byte> out);

  // Samples that have an entry; no depth of that name: 0.
  int64_t num_entries(const FrozenPrefix& prefix) const;

  CacheCounts counts() const;

 private:
  // An open depth that stays open until this is gone.
  struct Use {
    size_t index;
    CacheDepth* depth;
    explicit Use(size_t at, CacheDepth& entered) : index(at), depth(&entered) {}
    Use(Use&& other) noexcept : index(other.index), depth(std::exchange(other.depth, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (depth != nullptr) depth->word.leave();
    }
  };
  // A sample's entry at the other depth, owned, which is to make room.
  struct Old {
    Use at;
    CacheEntry& entry;
    Place place;
    int64_t bytes() const { return at.depth->layout.slot_bytes; }
  };

  std::optional<size_t> find(const FrozenPrefix& prefix) const;  // under the table's lock
  std::optional<Use> use(const FrozenPrefix& prefix) const;
  std::optional<Old> own_older(const Use& newer, int64_t sample);
  Place make_room(const Use& at, int64_t sample);
  std::optional<std::span<const std::byte>> encode(const CacheDepth& depth, int64_t sample,
                                                   std::span<const std::byte> bytes);
  bool read(const Use& at, Place place, int64_t sample, const CacheEntry& entry, std::span<std::byte> out);
  void free_slot(const Use& at, Place place, int64_t sample);
  void close_tier(Place place, int error);
  void note(const std::string& text) const;

  CacheHead& head() const { return table_.head(); }
  static size_t tier_of(Place place) { return place == Place::Memory ? 0 : 1; }
  CacheTier& tier(Place place) const { return head().tiers[tier_of(place)]; }
  SlotFile& file(Place place, size_t depth) const { return *files_[tier_of(place)][depth]; }

  CacheTable table_;
  const OnCacheNote on_note_;
  std::array<std::array<std::unique_ptr<SlotFile>, kDepths>, kTiers> files_;  // no disk: none there

  struct Tally {
    std::atomic<int64_t> hits_memory{0}, hits_disk{0}, misses{0}, corrupt{0}, stored{0}, dropped{0}, evicted{0};
  };
  Tally tally_;
};

}  // namespace millrace::cache
