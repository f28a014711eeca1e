#include "millrace/cache/activation_cache.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/cache/half.h"

namespace millrace::cache {
namespace {

constexpr std::array<Place, kTiers> kPlaces{Place::Memory, Place::Disk};  // in the order in which they are filled

// What is stored of an entry where that is not what is put; each thread has its own.
std::span<std::byte> scratch(int64_t bytes) {
  thread_local std::vector<std::byte> memory;
  memory.resize(static_cast<size_t>(bytes));
  return memory;
}

uint64_t checksum_of(std::span<const std::byte> stored) { return XXH3_64bits(stored.data(), stored.size()); }

template <typename T, typename Byte>
std::span<T> as(std::span<Byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

void add(std::atomic<int64_t>& count, int64_t much = 1) { count.fetch_add(much, std::memory_order_relaxed); }

int64_t stored_bytes(const CacheDepth& depth, bool stores_half) {
  return stores_half ? depth.entry_bytes / 2 : depth.entry_bytes;
}

bool is_of(const CacheDepth& depth, const FrozenPrefix& prefix) {
  return depth.layers == prefix.layers && depth.weights == prefix.weights;
}

void check_call(const CacheHead& head, const CacheDepth& depth, int64_t sample, size_t bytes) {
  if (sample < 0 || sample >= head.num_samples) fail_input("sample {} of a cache for {}", sample, head.num_samples);
  if (bytes != static_cast<size_t>(depth.entry_bytes)) {
    fail_input("an entry of {} bytes at a depth where they have {}", bytes, depth.entry_bytes);
  }
}

}  // namespace

ActivationCache::ActivationCache(const CacheOptions& options, OnCacheNote on_note)
    : table_(std::max<int64_t>(options.num_samples, 0)), on_note_(std::move(on_note)) {
  if (options.num_samples < 1) fail_input("a cache for {} samples", options.num_samples);
  if (options.memory_bytes < 0 || options.disk_bytes < 0) {
    fail_input("a cache of {} bytes in memory and {} on disk", options.memory_bytes, options.disk_bytes);
  }
  if (options.disk_bytes > 0 && options.directory.empty()) fail_input("a cache on disk needs a directory");
  head().stores_half = options.storage == Storage::Half;
  head().has_disk = options.disk_bytes > 0;
  head().tiers[0].budget_bytes = options.memory_bytes;
  head().tiers[1].budget_bytes = options.disk_bytes;
  for (size_t depth = 0; depth < kDepths; ++depth) {
    files_[0][depth] = SlotFile::in_memory();
    head().files[0][depth] = files_[0][depth]->address();
    if (!head().has_disk) continue;
    files_[1][depth] = SlotFile::on_disk(options.directory);
    head().files[1][depth] = files_[1][depth]->address();
  }
}

ActivationCache::ActivationCache(const std::string& ticket, OnCacheNote on_note)
    : table_(ticket), on_note_(std::move(on_note)) {
  for (size_t depth = 0; depth < kDepths; ++depth) {
    files_[0][depth] = SlotFile::of(table_.creator(), head().files[0][depth]);
    if (head().has_disk) files_[1][depth] = SlotFile::of(table_.creator(), head().files[1][depth]);
  }
}

void ActivationCache::open_depth(const FrozenPrefix& prefix, int64_t bytes_per_entry) {
  if (bytes_per_entry < 1 || (head().stores_half && bytes_per_entry % sizeof(float) != 0)) {
    fail_input("a cache of {} with {} bytes for each sample", head().stores_half ? "floats" : "bytes", bytes_per_entry);
  }
  const CacheTable::Lock lock(table_);
  if (const auto open = find(prefix)) {
    const int64_t bytes = head().depths[*open].entry_bytes;
    if (bytes == bytes_per_entry) return;
    fail_input("entries of {} layers have {} bytes, not {}", prefix.layers, bytes, bytes_per_entry);
  }
  for (CacheDepth& depth : head().depths) {
    if (depth.word.is_open()) continue;
    depth.layers = prefix.layers;
    depth.weights = prefix.weights;
    depth.entry_bytes = bytes_per_entry;
    const int64_t pages = (stored_bytes(depth, head().stores_half) + SlotFile::kPage - 1) / SlotFile::kPage;
    depth.layout = {head().num_samples, pages * SlotFile::kPage, ++head().layouts};
    depth.word.open();
    return;
  }
  fail_input("{} depths are open ({} and {} layers): retire one before opening {} layers", kDepths,
             head().depths[0].layers, head().depths[1].layers, prefix.layers);
}

void ActivationCache::retire(const FrozenPrefix& prefix) {
  const CacheTable::Lock lock(table_);
  const auto open = find(prefix);
  if (!open) return;
  CacheDepth& depth = head().depths[*open];
  depth.word.close();
  for (const Place place : kPlaces) {
    const int64_t held = depth.held_bytes[tier_of(place)].exchange(0);
    // What cannot be freed stays counted: the budget is of what the files take.
    if (held > 0 && file(place, *open).clear()) tier(place).give_back(held);
  }
  add(tally_.evicted, depth.num_entries.exchange(0));
  table_.forget_entries(*open);
}

Put ActivationCache::put(const FrozenPrefix& prefix, int64_t sample, uint64_t augmentation,
                         std::span<const std::byte> bytes) {
  const auto drop = [&] {
    add(tally_.dropped);
    return Put::Dropped;
  };
  const auto at = use(prefix);
  if (!at) return drop();
  check_call(head(), *at->depth, sample, bytes.size());
  CacheEntry& entry = table_.entry(at->index, sample);

  const Place there = entry.word.enter();
  if (there == Place::Busy) return Put::Present;
  if (there != Place::Nowhere) {
    const bool is_same = entry.augmentation == augmentation;
    entry.word.leave();
    if (is_same) return Put::Present;
  }
  const auto stored = encode(*at->depth, sample, bytes);
  if (!stored) return drop();
  const std::optional<Place> was = entry.word.own();
  if (!was) return drop();

  const Place place = *was == Place::Nowhere ? make_room(*at, sample) : *was;
  if (place == Place::Nowhere) {
    entry.word.publish(Place::Nowhere);
    return drop();
  }
  entry.augmentation = augmentation;
  entry.checksum = checksum_of(*stored);
  if (const int error = file(place, at->index).write(at->depth->layout, sample, *stored)) {
    close_tier(place, error);
    free_slot(*at, place, sample);
    entry.word.publish(Place::Nowhere);
    return drop();
  }
  entry.word.publish(place);
  add(tally_.stored);
  return Put::Stored;
}

bool ActivationCache::get(const FrozenPrefix& prefix, int64_t sample, uint64_t augmentation, std::span<std::byte> out) {
  const auto miss = [&] {
    add(tally_.misses);
    return false;
  };
  const auto at = use(prefix);
  if (!at) return miss();
  check_call(head(), *at->depth, sample, out.size());
  CacheEntry& entry = table_.entry(at->index, sample);

  const Place place = entry.word.enter();
  if (place != Place::Memory && place != Place::Disk) return miss();
  if (entry.augmentation != augmentation) {
    entry.word.leave();
    return miss();
  }
  if (read(*at, place, sample, entry, out)) {
    entry.word.leave();
    add(place == Place::Memory ? tally_.hits_memory : tally_.hits_disk);
    return true;
  }
  add(tally_.corrupt);
  if (entry.word.leave_or_own()) {
    free_slot(*at, place, sample);
    entry.word.publish(Place::Nowhere);
  }
  return miss();
}

CacheCounts ActivationCache::counts() const {
  return {.hits_memory = tally_.hits_memory,
          .hits_disk = tally_.hits_disk,
          .misses = tally_.misses,
          .corrupt = tally_.corrupt,
          .stored = tally_.stored,
          .dropped = tally_.dropped,
          .evicted = tally_.evicted,
          .memory_bytes = tier(Place::Memory).used_bytes,
          .disk_bytes = tier(Place::Disk).used_bytes};
}

int64_t ActivationCache::num_entries(const FrozenPrefix& prefix) const {
  const std::optional<Use> at = use(prefix);
  return at ? at->depth->num_entries.load() : 0;
}

std::optional<size_t> ActivationCache::find(const FrozenPrefix& prefix) const {
  for (size_t i = 0; i < kDepths; ++i) {
    if (head().depths[i].word.is_open() && is_of(head().depths[i], prefix)) return i;
  }
  return std::nullopt;
}

std::optional<ActivationCache::Use> ActivationCache::use(const FrozenPrefix& prefix) const {
  for (size_t i = 0; i < kDepths; ++i) {
    CacheDepth& depth = head().depths[i];
    if (!depth.word.enter()) continue;
    Use entered(i, depth);
    if (is_of(depth, prefix)) return entered;
  }
  return std::nullopt;
}

std::optional<ActivationCache::Old> ActivationCache::own_older(const Use& newer, int64_t sample) {
  const size_t index = 1 - newer.index;
  CacheDepth& depth = head().depths[index];
  if (!depth.word.enter()) return std::nullopt;
  Use entered(index, depth);
  if (depth.layout.number > newer.depth->layout.number) return std::nullopt;
  CacheEntry& entry = table_.entry(index, sample);
  const std::optional<Place> place = entry.word.own();
  if (!place) return std::nullopt;  // being read: it goes when its depth is retired
  if (*place == Place::Nowhere || !file(*place, index).can_release()) {
    entry.word.publish(*place);
    return std::nullopt;
  }
  return Old{std::move(entered), entry, *place};
}

// A place for a sample's entry, taken out of its tier's budget; Nowhere if there is none. The older depth's entry makes
// room where that gives the new one a place, and is kept where it does not. What grows is taken before, what shrinks
// given back after the old pages are gone: files never hold more than is counted.
Place ActivationCache::make_room(const Use& at, int64_t sample) {
  const std::optional<Old> old = own_older(at, sample);
  const int64_t bytes = at.depth->layout.slot_bytes;
  Place found = Place::Nowhere;
  for (const Place place : kPlaces) {
    const int64_t reused = old && old->place == place ? std::min(old->bytes(), bytes) : 0;
    if (tier(place).is_closed.load(std::memory_order_relaxed) || !tier(place).take(bytes - reused)) continue;
    if (old && !file(old->place, old->at.index).release(old->at.depth->layout, sample)) {
      tier(place).give_back(bytes - reused);
      break;
    }
    if (old) {
      tier(old->place).give_back(old->bytes() - reused);
      old->at.depth->held_bytes[tier_of(old->place)] -= old->bytes();
      old->at.depth->num_entries -= 1;
      add(tally_.evicted);
    }
    at.depth->held_bytes[tier_of(place)] += bytes;
    at.depth->num_entries += 1;
    found = place;
    break;
  }
  if (old) old->entry.word.publish(found == Place::Nowhere ? old->place : Place::Nowhere);
  return found;
}

// As it is to be stored, valid until the thread's next call; nothing if it cannot be.
std::optional<std::span<const std::byte>> ActivationCache::encode(const CacheDepth& depth, int64_t sample,
                                                                  std::span<const std::byte> bytes) {
  if (!head().stores_half) return bytes;
  const std::span<std::byte> halves = scratch(stored_bytes(depth, true));
  if (to_half(as<const float>(bytes), as<uint16_t>(halves))) return halves;
  if (!head().range_was_noted.exchange(true)) {
    note(fmt::format("sample {} has values that f16 cannot hold (65520 and above): such samples are not cached",
                     sample));
  }
  return std::nullopt;
}

bool ActivationCache::read(const Use& at, Place place, int64_t sample, const CacheEntry& entry,
                           std::span<std::byte> out) {
  SlotFile& from = file(place, at.index);
  const int64_t bytes = stored_bytes(*at.depth, head().stores_half);
  std::span<const std::byte> stored;
  if (const std::byte* view = from.view(at.depth->layout, sample)) {
    stored = {view, static_cast<size_t>(bytes)};
  } else {
    const std::span<std::byte> into = head().stores_half ? scratch(bytes) : out;
    if (!from.read(at.depth->layout, sample, into)) return false;
    stored = into;
  }
  if (checksum_of(stored) != entry.checksum) return false;
  if (head().stores_half) {
    from_half(as<const uint16_t>(stored), as<float>(out));
  } else if (stored.data() != out.data()) {
    std::memcpy(out.data(), stored.data(), stored.size());
  }
  return true;
}

// Where the space cannot be given back it stays counted until the depth is retired.
void ActivationCache::free_slot(const Use& at, Place place, int64_t sample) {
  const int64_t bytes = at.depth->layout.slot_bytes;
  if (file(place, at.index).release(at.depth->layout, sample)) {
    tier(place).give_back(bytes);
    at.depth->held_bytes[tier_of(place)] -= bytes;
  }
  at.depth->num_entries -= 1;
}

void ActivationCache::close_tier(Place place, int error) {
  if (tier(place).is_closed.exchange(true)) return;
  note(fmt::format("the cache takes nothing more {} after {} bytes: {}; what it has stays in use",
                   place == Place::Memory ? "in memory" : "on disk", tier(place).used_bytes.load(),
                   std::strerror(error)));
}

void ActivationCache::note(const std::string& text) const {
  if (on_note_) on_note_(text);
}

}  // namespace millrace::cache
