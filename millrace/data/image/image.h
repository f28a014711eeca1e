// A decoded picture: rows of interleaved 8-bit pixels, and the two kinds of rectangle cut out of one. Decoders reuse
// the memory of the picture they are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::data {

struct Image {
  int width = 0;
  int height = 0;
  int channels = 3;             // 3: red, green, blue; 1: grey
  std::vector<uint8_t> pixels;  // height * width * channels; may be longer than needed

  // Takes the new shape; memory only grows, so that a picture used again and again stops allocating.
  void reshape(int new_width, int new_height, int new_channels) {
    width = new_width;
    height = new_height;
    channels = new_channels;
    const size_t bytes = static_cast<size_t>(width) * height * channels;
    if (pixels.size() < bytes) pixels.resize(bytes);
  }

  uint8_t* row(int y) { return pixels.data() + static_cast<size_t>(y) * width * channels; }
  const uint8_t* row(int y) const { return pixels.data() + static_cast<size_t>(y) * width * channels; }
};

// What a colour is as grey (ITU-R BT.601, as JPEG has it).
inline uint8_t luma(int red, int green, int blue) {
  return static_cast<uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}

// Whole pixels.
struct Rect {
  int left = 0, top = 0, width = 0, height = 0;
  int right() const { return left + width; }
  int bottom() const { return top + height; }
  bool operator==(const Rect&) const = default;
};

// Fractions of pixels: pixel i covers [i, i + 1).
struct Box {
  double left = 0, top = 0, width = 0, height = 0;
  bool operator==(const Box&) const = default;
};

}  // namespace millrace::data
