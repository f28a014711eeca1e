// Memory that is needed later, asked for little by little while products are made. A core that waits for memory
// computes nothing, and one that computes leaves its memory idle: large tensors came and went between computations
// instead of during them.
#pragma once

#include <cstdint>

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu {

class Ahead {
 public:
  Ahead() = default;
  // `pieces` of `lines` vectors each, `stride` apart, to be asked for by about as many calls of fetch() as `calls`.
  Ahead(const Lanes* data, int64_t lines, int64_t pieces, int64_t stride, int64_t calls) {
    // What is fetched must not push out what is in use: together they have to fit the second cache.
    constexpr int64_t kMostBytes = 448 << 10;
    if (lines * pieces * static_cast<int64_t>(sizeof(Lanes)) > kMostBytes) return;
    at_ = data;
    lines_ = lines;
    left_ = lines;
    pieces_ = pieces;
    gap_ = stride - lines;
    per_call_ = (lines * pieces + calls - 1) / calls;
  }

  [[gnu::always_inline]] void fetch() {
    for (int64_t i = 0; i < per_call_ && pieces_ > 0; ++i) {
      __builtin_prefetch(at_++, 0, 2);  // into the second cache: the first has other things to keep
      if (--left_ > 0) continue;
      at_ += gap_;
      left_ = lines_;
      --pieces_;
    }
  }

 private:
  const Lanes* at_ = nullptr;
  int64_t lines_ = 0, left_ = 0, pieces_ = 0, gap_ = 0, per_call_ = 0;
};

}  // namespace millrace::backend::cpu
