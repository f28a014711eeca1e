// Inputs on their way to the GPU beside the tasks: copied through a stream of their own into memory set aside for them,
// from where the tasks take them.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

class Inlet {
 public:
  // `tasks`: what the worker's tasks run on.
  explicit Inlet(const Device& tasks) : tasks_(tasks) {}
  ~Inlet();
  Inlet(const Inlet&) = delete;
  Inlet& operator=(const Inlet&) = delete;

  // Once what lay in the landing before was read by the tasks that use() it.
  void bring(const void* host, size_t bytes, void* landing);
  // Where it was brought to: `body(memory)` calls tasks that read it. False: it was not.
  template <typename Body>
  bool use(const void* host, size_t bytes, Body&& body) {
    Piece* piece = find(host, bytes);
    if (!piece) return false;
    ask(*piece);
    body(static_cast<const void*>(piece->landing));
    give_up(*piece);
    return true;
  }
  // Returns when nothing is copied any more.
  void await();
  // Nothing that lies there was brought.
  void forget(std::span<const std::byte> host);
  double late_s() const { return late_s_; }

 private:
  // When tasks came to need it, when it was there, and when they had read it.
  struct Turn {
    cudaEvent_t asked = nullptr, there = nullptr, read = nullptr;
    bool was_asked = false;
  };
  struct Piece {
    void* landing = nullptr;
    const void* host = nullptr;  // null: nothing lies there that is still to be used
    size_t bytes = 0;
    // One after another: the host may be some steps ahead of the tasks.
    std::array<Turn, 4> turns{};
    size_t turn = 0;
  };
  Piece* find(const void* host, size_t bytes);
  void ask(Piece& piece);
  void give_up(Piece& piece);
  void count_late(Turn& turn);

  const Device& tasks_;
  cudaStream_t stream_ = nullptr;  // made at the first use
  std::vector<Piece> pieces_;      // one for each landing
  double late_s_ = 0;
};

}  // namespace millrace::backend::cuda
