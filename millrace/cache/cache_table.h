// What the processes that share a cache agree on, in one mapping: which depths are open, where every entry is, and what
// the tiers hold. The whole state is here, as atomics; the entries themselves lie in slot files.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "millrace/cache/anonymous_file.h"
#include "millrace/cache/depth_word.h"
#include "millrace/cache/entry_word.h"
#include "millrace/cache/slot_file.h"

namespace millrace::cache {

// Written by the entry's owner, valid for its readers.
struct CacheEntry {
  EntryWord word;
  uint64_t augmentation;
  uint64_t checksum;  // of what is stored
};

constexpr size_t kTiers = 2;   // memory, disk
constexpr size_t kDepths = 2;  // that which is read, and the deeper one that takes its place

struct CacheTier {
  int64_t budget_bytes;
  std::atomic<int64_t> used_bytes;
  std::atomic<bool> is_closed;  // nothing comes in any more

  // Takes bytes out of the budget, or none.
  bool take(int64_t bytes) {
    int64_t used = used_bytes.load(std::memory_order_relaxed);
    while (used + bytes <= budget_bytes) {
      if (used_bytes.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  void give_back(int64_t bytes) { used_bytes.fetch_sub(bytes, std::memory_order_relaxed); }
};

// All but the counts is fixed while the depth is open.
struct CacheDepth {
  DepthWord word;
  int32_t layers;
  uint64_t weights;
  int64_t entry_bytes;  // as put
  SlotLayout layout;    // as stored; a later depth has a larger number
  std::atomic<int64_t> num_entries;
  std::array<std::atomic<int64_t>, kTiers> held_bytes;  // of each tier's budget
};

struct CacheHead {
  std::array<uint64_t, 2> identity;
  int64_t num_samples;
  bool stores_half;
  bool has_disk;
  std::atomic<bool> range_was_noted;
  uint64_t layouts;  // numbers given out; under the lock
  std::array<CacheTier, kTiers> tiers;
  std::array<CacheDepth, kDepths> depths;
  // As the creator has them; the disk's are unset where there is none.
  std::array<std::array<SlotFile::Address, kDepths>, kTiers> files;
};

class CacheTable {
 public:
  explicit CacheTable(int64_t num_samples);
  // That of another process on this host, from its ticket. Throws std::runtime_error where it cannot be reached.
  explicit CacheTable(const std::string& ticket);
  ~CacheTable();
  CacheTable(const CacheTable&) = delete;
  CacheTable& operator=(const CacheTable&) = delete;

  // For other processes of this user on this host, as long as the creator lives.
  const std::string& ticket() const { return ticket_; }
  pid_t creator() const { return creator_; }

  CacheHead& head() const { return *head_; }
  CacheEntry& entry(size_t depth, int64_t sample) const;
  // Every entry of a depth is nowhere again; nobody uses it.
  void forget_entries(size_t depth);

  // Held while depths are opened and closed; never while entries are copied. The kernel gives it back if a process
  // dies with it.
  class Lock {
   public:
    explicit Lock(CacheTable& table);
    ~Lock();

   private:
    const std::lock_guard<std::mutex> threads_;
    const int processes_;
  };

 private:
  static int64_t index_bytes(int64_t num_samples);  // of one depth
  static int64_t table_bytes(int64_t num_samples);
  void map(int64_t bytes);

  const pid_t creator_;
  const Descriptor file_;
  std::mutex mutex_;
  std::string ticket_;
  CacheHead* head_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace millrace::cache
