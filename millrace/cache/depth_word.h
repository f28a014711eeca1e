// Whether a depth is open, and how many calls are using it, in one atomic word that processes may share. Zero is
// closed and unused.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace millrace::cache {

class DepthWord {
 public:
  // True: the depth stays as it is until the caller leaves.
  bool enter() {
    uint32_t word = word_.load(std::memory_order_relaxed);
    while ((word & kOpen) != 0) {
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_relaxed))
        return true;
    }
    return false;
  }
  void leave() { word_.fetch_sub(1, std::memory_order_release); }

  // By whoever holds the table's lock.
  bool is_open() const { return (word_.load(std::memory_order_acquire) & kOpen) != 0; }
  void open() { word_.store(kOpen, std::memory_order_release); }
  // After those that are in it: they wait for nobody, so that takes as long as copying one entry.
  void close() {
    word_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (word_.load(std::memory_order_acquire) != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  static constexpr uint32_t kOpen = 1u << 31;
  std::atomic<uint32_t> word_{0};
};

}  // namespace millrace::cache
