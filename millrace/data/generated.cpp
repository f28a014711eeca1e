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
    if (labels) *labels++ = label;
    if (!images) continue;
    draw(sample, label, images);
    images += format_.elements();
  }
}

void Generated::draw(int64_t sample, int label, float* image) const {
  const RandomStream noise(noise_key_, 0, static_cast<uint64_t>(sample));
  const int64_t elements = format_.elements();
  for (int64_t i = 0; i < elements; i += 4) {
    const RandomBlock words = noise.at(static_cast<uint64_t>(i / 4));
    const int64_t count = std::min<int64_t>(4, elements - i);
    for (int64_t j = 0; j < count; ++j) image[i + j] = noise_ * cheap_normal(words[j]);
  }

  const RandomStream pose(pose_key_, 0, static_cast<uint64_t>(sample));
  const RandomBlock own = pose.at(0);
  const float contrast = 0.7f + 0.6f * uniform(own[2]);
  add_pattern(label, contrast, uniform(own[0]), uniform(own[1]), image);
  if (format_.classes > 1) {
    const RandomBlock faint = pose.at(1);
    const int step = 1 + static_cast<int>(faint[3] % static_cast<uint32_t>(format_.classes - 1));
    const float share = kMinFaint + (kMaxFaint - kMinFaint) * uniform(faint[2]);
    add_pattern((label + step) % format_.classes, share * contrast, uniform(faint[0]), uniform(faint[1]), image);
  }
}

void Generated::add_pattern(int label, float contrast, float x, float y, float* image) const {
  const float shift_x = kTwoPi * kMaxShift * (2 * x - 1);
  const float shift_y = kTwoPi * kMaxShift * (2 * y - 1);
  const int size = format_.size;
  const Wave* wave = waves_.data() + static_cast<size_t>(label) * format_.channels * kWaves;
  for (int channel = 0; channel < format_.channels; ++channel) {
    float* plane = image + int64_t{channel} * size * size;
    for (int i = 0; i < kWaves; ++i, ++wave) {
      const float phase = wave->phase + static_cast<float>(wave->fx) * shift_x + static_cast<float>(wave->fy) * shift_y;
      const float in_phase = contrast * wave->amplitude * std::cos(phase);
      const float out_of_phase = contrast * wave->amplitude * std::sin(phase);
      const float sign = wave->fy < 0 ? -1.0f : 1.0f;
      const float* sin_x = &sines_[static_cast<size_t>(wave->fx) * size];
      const float* cos_x = &cosines_[static_cast<size_t>(wave->fx) * size];
      const float* sin_y = &sines_[static_cast<size_t>(std::abs(wave->fy)) * size];
      const float* cos_y = &cosines_[static_cast<size_t>(std::abs(wave->fy)) * size];
      for (int row = 0; row < size; ++row) {
        // sin(a * column + (b * row + phase)), with the row's part worked out once.
        const float row_sin = out_of_phase * cos_y[row] + in_phase * sign * sin_y[row];
        const float row_cos = in_phase * cos_y[row] - out_of_phase * sign * sin_y[row];
        float* pixels = plane + int64_t{row} * size;
        for (int column = 0; column < size; ++column) {
          pixels[column] += row_cos * sin_x[column] + row_sin * cos_x[column];
        }
      }
    }
  }
}

}  // namespace millrace::data
