// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11). A number depends only on what it is
// for - seed, purpose, step, sample, element - never on which worker draws it or in what order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace millrace {

using RandomBlock = std::array<uint32_t, 4>;

inline RandomBlock philox(RandomBlock counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// A stream of numbers for one purpose; `at(i)` is its i-th block of four.
class RandomStream {
 public:
  // `step` and `sample` are whatever two coordinates tell uses of the same key apart.
  RandomStream(uint64_t key, uint64_t step, uint64_t sample) : key_(mix(key, step)), sample_(sample) {}

  RandomBlock at(uint64_t index) const {
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(sample_),
                   static_cast<uint32_t>(sample_ >> 32)},
                  key_);
  }

  // Two words hashed into a key: a bijective scramble (splitmix64) of each, so that near inputs are far apart.
  static uint64_t mix(uint64_t a, uint64_t b) { return scramble(scramble(a) + b); }

 private:
  static uint64_t scramble(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  uint64_t key_;
  uint64_t sample_;
};

// [0, 1) with 24 bits, exactly representable in a float.
inline float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Two standard normals from two words (Box-Muller).
inline std::array<float, 2> normal(uint32_t a, uint32_t b) {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a) + 1.0) * 0x1p-32));
  const double angle = 2.0 * 3.14159265358979323846 * static_cast<double>(b) * 0x1p-32;
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

// FNV-1a: a stable hash of a global name, so that a parameter's numbers do not depend on where it stands.
inline uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace millrace
