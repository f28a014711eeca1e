// What attention does to one row of scores, in vectors: exponentials, and the factors of dropout.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/exponential.h"
#include "millrace/backend/dropout_mask.h"

namespace millrace::backend::cpu {

inline Lanes lane_numbers() {
  Lanes numbers;
  for (int lane = 0; lane < kBlock; ++lane) numbers[lane] = static_cast<float>(lane);
  return numbers;
}

// Adds `hidden` (null: nothing), and puts minus infinity where no key is: from `keys` on.
inline void hide_keys(Lanes* row, const Lanes* hidden, int64_t keys, int64_t vectors) {
  if (hidden) {
    for (int64_t v = 0; v < vectors; ++v) row[v] += hidden[v];
  }
  const Lanes none = splat(-INFINITY);
  int64_t v = keys / kBlock;
  if (v < vectors && keys % kBlock != 0) {
    row[v] = select(lane_numbers() < static_cast<float>(keys % kBlock), row[v], none);
    ++v;
  }
  std::fill(row + v, row + std::max(v, vectors), none);
}

struct RowSum {
  float largest = -INFINITY;  // minus infinity: no key is seen
  float total = 0;
};

// Exponentials of the scores less the largest of them, in their place. Lanes are added in a fixed order.
inline RowSum exponentials(Lanes* row, int64_t vectors) {
  Lanes most = row[0], sum{};
  for (int64_t v = 1; v < vectors; ++v) most = select(row[v] > most, row[v], most);
  RowSum result;
  for (int lane = 0; lane < kBlock; ++lane) result.largest = std::max(result.largest, most[lane]);
  if (result.largest == -INFINITY) {
    std::fill(row, row + vectors, Lanes{});
    return result;
  }
  for (int64_t v = 0; v < vectors; ++v) sum += row[v] = exponential(row[v] - result.largest);
  for (int lane = 0; lane < kBlock; ++lane) result.total += sum[lane];
  return result;
}

// What dropout multiplies the weights of one sample with. The numbers are those of DropoutMask::row, of many Philox
// blocks side by side: one after another they would take as long as the attention itself.
class DropoutFactors {
 public:
  // Words for `vectors` vectors of elements, and for what a draw makes before and behind them.
  static int64_t words_for(int64_t vectors) { return vectors * kBlock + 4 + 4 * kDraw; }

  DropoutFactors(const DropoutMask& mask, uint64_t purpose, const StepContext& context, int64_t row, uint32_t* words)
      : mask_(mask),
        key_(RandomStream::mix(RandomStream::mix(context.seed, purpose), static_cast<uint64_t>(context.step))),
        sample_(static_cast<uint64_t>(context.first_row + row)),
        words_(words) {}

  // Of elements [first, first + vectors * kBlock).
  void draw(int64_t first, int64_t vectors, Lanes* factors) const {
    const auto block = static_cast<uint64_t>(first) / 4, skipped = static_cast<uint64_t>(first) % 4;
    const int64_t elements = vectors * kBlock, needed = elements + static_cast<int64_t>(skipped);
    for (int64_t at = 0; at < needed; at += 4 * kDraw) {
      draw_blocks(block + static_cast<uint64_t>(at / 4), words_ + at);
    }
    const auto scale = static_cast<float>(mask_.scale());
    auto* to = reinterpret_cast<float*>(factors);
    for (int64_t e = 0; e < elements; ++e) to[e] = mask_.keeps(words_[skipped + e]) ? scale : 0.0f;
  }

 private:
  static constexpr int kWords = kBlock / 2;        // 64 bits each, of which a word of Philox takes the lower half
  static constexpr int kVectors = 2;               // independent of each other, to hide the latency of products
  static constexpr int kDraw = kVectors * kWords;  // blocks at once
  using Words [[gnu::vector_size(kBlock * sizeof(float))]] = uint64_t;

  // philox() of millrace/base/random.h.
  void draw_blocks(uint64_t first, uint32_t* to) const {
    constexpr uint64_t kLower = 0xFFFFFFFFu;
    Words lanes, low, high;
    for (int i = 0; i < kWords; ++i) {
      lanes[i] = static_cast<uint64_t>(i);
      low[i] = static_cast<uint64_t>(i / 2 + i % 2 * kWords);
    }
    high = low + kWords / 2;
    Words counter[kVectors][4];
    for (int v = 0; v < kVectors; ++v) {
      const Words index = lanes + first + static_cast<uint64_t>(v * kWords);
      counter[v][0] = index & kLower;
      counter[v][1] = index >> 32;
      counter[v][2] = Words{} + (sample_ & kLower);
      counter[v][3] = Words{} + (sample_ >> 32);
    }
    auto k0 = static_cast<uint32_t>(key_), k1 = static_cast<uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
      for (auto& c : counter) {
        const Words p0 = c[0] * 0xD2511F53u, p1 = c[2] * 0xCD9E8D57u;
        c[0] = (p1 >> 32) ^ c[1] ^ uint64_t { k0 };
        c[1] = p1 & kLower;
        c[2] = (p0 >> 32) ^ c[3] ^ uint64_t { k1 };
        c[3] = p0 & kLower;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (const auto& c : counter) {
      const Words front = c[0] | c[1] << 32, back = c[2] | c[3] << 32;
      const Words both[2] = {__builtin_shuffle(front, back, low), __builtin_shuffle(front, back, high)};
      std::memcpy(to, both, sizeof both);
      to += 4 * kWords;
    }
  }

  DropoutMask mask_;
  uint64_t key_, sample_;
  uint32_t* words_;
};

}  // namespace millrace::backend::cpu
