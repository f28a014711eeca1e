// Where an entry is and who uses it, in one atomic word: any number of readers, or one owner. Nobody waits: who cannot
// have the entry now goes without. The word may lie in memory that several processes share; zero is Nowhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace millrace::cache {

enum class Place : uint32_t { Nowhere, Busy, Memory, Disk };  // Busy: somebody owns it

class EntryWord {
 public:
  // Memory or Disk: the caller reads, and the entry stays as it is until it leaves. Otherwise it cannot be read.
  Place enter() {
    uint32_t word = word_.load(std::memory_order_relaxed);
    while (place_of(word) == Place::Memory || place_of(word) == Place::Disk) {
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_relaxed)) break;
    }
    return place_of(word);
  }
  void leave() { word_.fetch_sub(1, std::memory_order_release); }

  // A reader that found the entry bad: true if it was the last, which then owns it.
  bool leave_or_own() {
    uint32_t word = word_.load(std::memory_order_relaxed);
    while (true) {
      const bool is_last = (word & kReaders) == 1;
      const uint32_t next = is_last ? word_of(Place::Busy) : word - 1;
      if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel, std::memory_order_relaxed)) return is_last;
    }
  }

  // Where the entry was, and from now on the caller's alone; nothing if others use it.
  std::optional<Place> own() {
    uint32_t word = word_.load(std::memory_order_relaxed);
    while (place_of(word) != Place::Busy && (word & kReaders) == 0) {
      const uint32_t busy = word_of(Place::Busy);
      if (word_.compare_exchange_weak(word, busy, std::memory_order_acquire, std::memory_order_relaxed)) {
        return place_of(word);
      }
    }
    return std::nullopt;
  }
  // The owner is done: the entry is there now.
  void publish(Place place) { word_.store(word_of(place), std::memory_order_release); }

 private:
  static constexpr int kPlaceShift = 28;
  static constexpr uint32_t kReaders = (1u << kPlaceShift) - 1;
  static Place place_of(uint32_t word) { return static_cast<Place>(word >> kPlaceShift); }
  static uint32_t word_of(Place place) { return static_cast<uint32_t>(place) << kPlaceShift; }

  std::atomic<uint32_t> word_{0};
};

}  // namespace millrace::cache
