#include "millrace/data/sampler.h"

#include <cassert>

#include "millrace/base/random.h"

namespace millrace::data {

Permutation::Permutation(int64_t length, uint64_t key) : length_(length), key_(key) {
  assert(length > 0);
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < length) ++half_bits_;
}

int64_t Permutation::operator[](int64_t position) const {
  assert(position >= 0 && position < length_);
  // The domain is less than four times the length, so the walk takes under four turns on average.
  auto value = static_cast<uint64_t>(position);
  do value = encrypt(value);
  while (value >= static_cast<uint64_t>(length_));
  return static_cast<int64_t>(value);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  // Six rounds: four look random for long epochs, the halves of short ones have only a few bits to mix.
  for (uint64_t round = 0; round < 6; ++round) {
    const uint64_t next = left ^ (RandomStream::mix(key_, (round << 32) | right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

Permutation epoch_order(int64_t length, uint64_t seed, int64_t epoch) {
  return {length, RandomStream::mix(RandomStream::mix(seed, hash_name("data.order")), static_cast<uint64_t>(epoch))};
}

}  // namespace millrace::data
