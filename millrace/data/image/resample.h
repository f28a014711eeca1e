// A box of a picture resized and written as the network's input: planes of normalised floats. Separable bilinear
// filtering whose triangle grows with the reduction, so that nothing is aliased: what Pillow's BILINEAR and
// torchvision's antialias=True do, but with no rounding to 8 bits in between or at the end. The result is the same to
// the last bit on any machine: plain multiplications and additions in a fixed order.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "millrace/data/image/image.h"

namespace millrace::data {

// (level - mean) / std of each channel, in levels of 0 to 255: torchvision's mean of 0.485 is 123.675 here.
struct Normalization {
  Normalization() = default;  // levels as they are
  Normalization(std::span<const float> mean, std::span<const float> std);

  // level * scale + offset
  std::array<float, 4> scale{1, 1, 1, 1};
  std::array<float, 4> offset{};
};

// One per thread: it keeps its tables and rows from picture to picture.
class Resampler {
 public:
  // Writes `box` of the picture (its own coordinates, at least partly inside `visible`) as channels x height x width.
  // Pixels outside `visible` are not looked at.
  void resample(const Image& from, const Rect& visible, const Box& box, bool mirror, int width, int height,
                const Normalization& normalization, float* out);

 private:
  // Output pixel i is the sum of `taps` pixels from first[i] on, times weights[i * taps + k].
  struct Axis {
    int begin = 0, end = 0;  // of the pixels that are visible
    double from = 0, length = 0;
    int size = 0;
    bool mirror = false;
    int taps = 0;
    std::vector<int> first;
    std::vector<float> weights;
    void prepare(int begin, int end, double from, double length, int size, bool mirror);
  };

  Axis x_, y_;
  std::vector<float> row_;
};

// The same without resizing: the pixels from (left, top) on, zero where there are none (before normalisation).
void copy_pixels(const Image& from, int left, int top, bool mirror, int width, int height,
                 const Normalization& normalization, float* out);

}  // namespace millrace::data
