// The random numbers of millrace/base/random.h, on the device: the same words for the same coordinates.
#pragma once

#include <cstdint>

namespace millrace::backend::cuda {

struct PhiloxBlock {
  uint32_t at[4];
};

__device__ inline uint64_t scramble(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
__device__ inline uint64_t mix(uint64_t a, uint64_t b) { return scramble(scramble(a) + b); }

// The keys of all rounds, for many blocks of one RandomStream.
struct PhiloxKeys {
  static constexpr int kRounds = 10;
  uint32_t at[kRounds][2];

  __device__ explicit PhiloxKeys(uint64_t key) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      at[round][0] = static_cast<uint32_t>(key) + static_cast<uint32_t>(round) * 0x9E3779B9u;
      at[round][1] = static_cast<uint32_t>(key >> 32) + static_cast<uint32_t>(round) * 0xBB67AE85u;
    }
  }
  // Stay in registers: a compiler thinks an addition is cheaper, but there are as many of them as multiplications.
  __device__ void keep() {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) asm volatile("" : "+r"(at[round][0]), "+r"(at[round][1]));
  }
};

// RandomStream, its key already mixed with the step: block `index` of `sample`.
__device__ inline PhiloxBlock philox(const PhiloxKeys& keys, uint64_t sample, uint64_t index) {
  PhiloxBlock counter{{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(sample),
                       static_cast<uint32_t>(sample >> 32)}};
#pragma unroll
  for (int round = 0; round < PhiloxKeys::kRounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter.at[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.at[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.at[1] ^ keys.at[round][0], static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.at[3] ^ keys.at[round][1], static_cast<uint32_t>(p0)}};
  }
  return counter;
}
__device__ inline PhiloxBlock philox(uint64_t key, uint64_t sample, uint64_t index) {
  return philox(PhiloxKeys(key), sample, index);
}

}  // namespace millrace::backend::cuda
