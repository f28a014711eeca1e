// A learnable image set made from the seed: every class is a smooth pattern (a few low-frequency waves per
// channel), every sample that pattern shifted and scaled, with a fainter one of another class across it and noise
// on top. Small networks learn it in a few epochs, nothing has to be downloaded, and no two samples are alike.
#pragma once

#include <vector>

#include "millrace/data/image_format.h"

namespace millrace::data {

class Generated : public Dataset {
 public:
  // `noise` is the standard deviation of the pixel noise; a class pattern has standard deviation 1.
  Generated(const ImageFormat& format, int64_t samples, double noise, uint64_t seed, Split split);

  int64_t size() const override { return samples_; }
  int64_t feature_bytes() const override { return format_.elements() * int64_t{sizeof(float)}; }
  std::unique_ptr<Reader> reader() const override { return std::make_unique<StatelessReader<Generated>>(*this); }
  void fill(std::span<const int64_t> samples, int64_t epoch, float* images, int32_t* labels) const;

 private:
  static constexpr int kWaves = 4;                            // per class and channel
  static constexpr int kMaxFrequency = 3;                     // periods over the image, along each axis
  static constexpr float kMaxShift = 0.25f;                   // of the image's extent, along each axis
  static constexpr float kMinFaint = 0.4f, kMaxFaint = 0.8f;  // the other class's contrast, relative to its own

  struct Wave {
    int fx, fy;   // whole periods, so that patterns wrap around
    float phase;  // radians
    float amplitude;
  };

  void draw(int64_t sample, int label, float* image) const;
  // `x` and `y` in [0, 1) say how far the pattern is shifted.
  void add_pattern(int label, float contrast, float x, float y, float* image) const;

  ImageFormat format_;
  int64_t samples_;
  float noise_;
  uint64_t noise_key_;
  uint64_t pose_key_;
  std::vector<Wave> waves_;             // [class][channel][kWaves]
  std::vector<float> sines_, cosines_;  // [frequency 0..kMaxFrequency][pixel]
};

}  // namespace millrace::data
