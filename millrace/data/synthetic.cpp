#include "millrace/data/synthetic.h"

#include <algorithm>

namespace millrace::data {

Synthetic::Synthetic(const ImageFormat& format, int64_t samples, bool one_fixed_batch, uint64_t seed, Split split)
    : format_(format),
      samples_(samples),
      one_fixed_batch_(one_fixed_batch),
      pixel_key_(sample_key(seed, split, "synthetic.pixels")),
      label_key_(sample_key(seed, split, "synthetic.label")) {}

void Synthetic::fill(std::span<const int64_t> samples, int64_t /*epoch*/, float* images, int32_t* labels) const {
  constexpr float kSpread = 3.4641016f;  // uniform over a width of sqrt(12) has standard deviation 1
  const int64_t elements = format_.elements();
  for (const int64_t sample : samples) {
    const RandomStream pixels(pixel_key_, 0, static_cast<uint64_t>(sample));
    for (int64_t i = 0; images && i < elements; i += 4) {
      const RandomBlock words = pixels.at(static_cast<uint64_t>(i / 4));
      const int64_t count = std::min<int64_t>(4, elements - i);
      for (int64_t j = 0; j < count; ++j) images[i + j] = kSpread * (uniform(words[j]) - 0.5f);
    }
    const uint32_t word = RandomStream(label_key_, 0, static_cast<uint64_t>(sample)).at(0)[0];
    if (labels) *labels++ = static_cast<int32_t>(word % static_cast<uint32_t>(format_.classes));
    if (images) images += elements;
  }
}

}  // namespace millrace::data
