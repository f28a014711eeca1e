// The order in which an epoch visits the samples: every sample once, in an order that depends only on the seed
// and the epoch, so any worker can work out any part of it without the rest.
#pragma once

#include <cstdint>

namespace millrace::data {

// A keyed bijection of [0, length): a Feistel network over the next even power of two, walked until it lands
// inside (Black and Rogaway, "Ciphers with arbitrary finite domains"). Needs no memory, however long the epoch.
class Permutation {
 public:
  Permutation(int64_t length, uint64_t key);

  int64_t length() const { return length_; }
  int64_t operator[](int64_t position) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  int64_t length_;
  uint64_t key_;
  int half_bits_ = 1;
};

// The order of epoch `epoch` of a data set of `length` samples.
Permutation epoch_order(int64_t length, uint64_t seed, int64_t epoch);

}  // namespace millrace::data
