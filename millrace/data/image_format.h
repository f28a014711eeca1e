// What one sample of an image data set looks like, and the key that tells its random numbers apart.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/random.h"
#include "millrace/data/dataset.h"

namespace millrace::data {

struct ImageFormat {
  int channels = 3;
  int size = 224;  // height and width
  int classes = 1000;

  int64_t elements() const { return int64_t{channels} * size * size; }
};

// Reads a data set whose samples are made from nothing but their numbers.
template <typename Maker>
class StatelessReader final : public Reader {
 public:
  explicit StatelessReader(const Maker& maker) : maker_(maker) {}
  void fill(std::span<const int64_t> samples, int64_t epoch, std::byte* features, int32_t* labels) override {
    maker_.fill(samples, epoch, reinterpret_cast<float*>(features), labels);
  }

 private:
  const Maker& maker_;
};

// Training and test samples draw from different streams even where their ids are equal.
inline uint64_t sample_key(uint64_t seed, Split split, std::string_view purpose) {
  return RandomStream::mix(RandomStream::mix(seed, hash_name(purpose)), split == Split::Train ? 0 : 1);
}

}  // namespace millrace::data
