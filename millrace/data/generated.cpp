#include "millrace/data/generated.h"

#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"

namespace millrace::data {
namespace {

constexpr float kTwoPi = 6.2831853f;

// A standard normal, nearly: the sum of a word's four bytes. A block gives four for one Philox call, and the loop
// over it needs no logarithm or sine; the tails end at 3.5, which noise does not mind.
float cheap_normal(uint32_t word) {
  const uint32_t sum = (word & 0xFF) + ((word >> 8) & 0xFF) + ((word >> 16) & 0xFF) + (word >> 24);
  constexpr float kInverseSpread = 0.0067658688f;  // 1 / sqrt(4 * (256^2 - 1) / 12)
  return (static_cast<float>(sum) - 510.0f) * kInverseSpread;
}

}  // namespace

Generated::Generated(const ImageFormat& format, int64_t samples, double noise, uint64_t seed, Split split)
    : format_(format),
      samples_(samples),
      noise_(static_cast<float>(noise)),
      noise_key_(sample_key(seed, split, "generated.noise")),
      pose_key_(sample_key(seed, split, "generated.pose")) {
  if (!(noise >= 0)) fail_input("data.noise: {} is not a standard deviation; write 0 or more", noise);

  // Patterns belong to the class, not to the split: what is learned on one must hold on the other.
  const uint64_t pattern_key = RandomStream::mix(seed, hash_name("generated.pattern"));
  waves_.reserve(static_cast<size_t>(format.classes) * format.channels * kWaves);
  for (int label = 0; label < format.classes; ++label) {
    for (int channel = 0; channel < format.channels; ++channel) {
      const RandomStream stream(pattern_key, static_cast<uint64_t>(label), static_cast<uint64_t>(channel));
      const size_t first = waves_.size();
      float power = 0;
      for (int wave = 0; wave < kWaves; ++wave) {
        const RandomBlock words = stream.at(static_cast<uint64_t>(wave));
        // Half of the frequency plane, without the constant: fx in 0..max, fy in -max..max.
        const int fx = static_cast<int>(words[0] % (kMaxFrequency + 1));
        int fy = static_cast<int>(words[1] % (2 * kMaxFrequency + 1)) - kMaxFrequency;
        if (fx == 0 && fy == 0) fy = 1;
        const float amplitude = 0.5f + uniform(words[3]);
        waves_.push_back({fx, fy, kTwoPi * uniform(words[2]), amplitude});
        power += 0.5f * amplitude * amplitude;
      }
      for (size_t i = first; i < waves_.size(); ++i) waves_[i].amplitude /= std::sqrt(power);
    }
  }

  for (int frequency = 0; frequency <= kMaxFrequency; ++frequency) {
    for (int pixel = 0; pixel < format.size; ++pixel) {
      const float angle = kTwoPi * static_cast<float>(frequency * pixel) / static_cast<float>(format.size);
      sines_.push_back(std::sin(angle));
      cosines_.push_back(std::cos(angle));
    }
  }
}

void Generated::fill(std::span<const int64_t> samples, int64_t /*epoch*/, float* images, int32_t* labels) const {
  for (const int64_t sample : samples) {
    const auto label = static_cast<int32_t>(sample % format_.classes);  // balanced; the sampler shuffles
    draw(sample, label, images);
    *labels++ = label;
    images += format_.elements();
  }
}

void Generated::draw(int64_t sample, int label, float* image) const {
  const RandomBlock pose = RandomStream(pose_key_, 0, static_cast<uint64_t>(sample)).at(0);
  const float shift_x = kTwoPi * kMaxShift * (2 * uniform(pose[0]) - 1);
  const float shift_y = kTwoPi * kMaxShift * (2 * uniform(pose[1]) - 1);
  const float contrast = 0.7f + 0.6f * uniform(pose[2]);
  const int size = format_.size;

  const RandomStream noise(noise_key_, 0, static_cast<uint64_t>(sample));
  const int64_t elements = format_.elements();
  for (int64_t i = 0; i < elements; i += 4) {
    const RandomBlock words = noise.at(static_cast<uint64_t>(i / 4));
    const int64_t count = std::min<int64_t>(4, elements - i);
    for (int64_t j = 0; j < count; ++j) image[i + j] = noise_ * cheap_normal(words[j]);
  }

  const Wave* wave = waves_.data() + static_cast<size_t>(label) * format_.channels * kWaves;
  for (int channel = 0; channel < format_.channels; ++channel) {
    float* plane = image + int64_t{channel} * size * size;
    for (int i = 0; i < kWaves; ++i, ++wave) {
      const float phase = wave->phase + static_cast<float>(wave->fx) * shift_x + static_cast<float>(wave->fy) * shift_y;
      const float amplitude = contrast * wave->amplitude;
      const float along = amplitude * std::cos(phase);
      const float across = amplitude * std::sin(phase);
      const float* sin_x = &sines_[static_cast<size_t>(wave->fx) * size];
      const float* cos_x = &cosines_[static_cast<size_t>(wave->fx) * size];
      const float* sin_y = &sines_[static_cast<size_t>(std::abs(wave->fy)) * size];
      const float* cos_y = &cosines_[static_cast<size_t>(std::abs(wave->fy)) * size];
      const float sign = wave->fy < 0 ? -1.0f : 1.0f;
      for (int y = 0; y < size; ++y) {
        // sin(ax + (by + phase)), with the row's part worked out once.
        const float row_sin = across * cos_y[y] + along * sign * sin_y[y];
        const float row_cos = along * cos_y[y] - across * sign * sin_y[y];
        float* row = plane + int64_t{y} * size;
        for (int x = 0; x < size; ++x) row[x] += row_cos * sin_x[x] + row_sin * cos_x[x];
      }
    }
  }
}

}  // namespace millrace::data
