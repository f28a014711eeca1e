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

// RandomStream, its key already mixed with the step: block `index` of `sample`.
__device__ inline PhiloxBlock philox(uint64_t key, uint64_t sample, uint64_t index) {
  PhiloxBlock counter{{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(sample),
                       static_cast<uint32_t>(sample >> 32)}};
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter.at[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.at[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.at[1] ^ k0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.at[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace millrace::backend::cuda
