#include "millrace/data/image/transform.h"

#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

// The whole pixels of [begin, begin + length), and as many more as a filter looks at beyond it, inside [0, end).
struct Span {
  int begin, length;
};
Span pixels(double begin, double length, double around, int end) {
  const int low = std::clamp(static_cast<int>(std::floor(begin - around)), 0, end - 1);
  const int high = std::clamp(static_cast<int>(std::ceil(begin + length + around)), low + 1, end);
  return {low, high - low};
}

Rect visible_pixels(const CropBox& crop, int size, int width, int height) {
  const auto around = [&](double length) { return crop.smooth_over_edge ? std::max(length / size, 1.0) : 0.0; };
  const Span x = pixels(crop.box.left, crop.box.width, around(crop.box.width), width);
  const Span y = pixels(crop.box.top, crop.box.height, around(crop.box.height), height);
  return {x.begin, y.begin, x.length, y.length};
}

bool is_whole(const Box& box, int size) {
  return box.width == size && box.height == size && box.left == std::floor(box.left) && box.top == std::floor(box.top);
}

}  // namespace

ImageTransform::ImageTransform(const job::Transform& transform, int size, int channels, std::span<const float> mean,
                               std::span<const float> std, Color color, uint64_t key)
    : transform_(transform), size_(size), channels_(channels), normalization_(mean, std), color_(color), key_(key) {
  if (channels != 1 && channels != 3) fail_input("pictures have 1 or 3 channels, the network's input has {}", channels);
  if (transform.kind == job::TransformKind::Auto) {
    fail_input("transform: auto stands for another kind, which depends on the data");
  }
  if (size < 1) fail_input("an input of {0}x{0} pixels; write 1 or more", size);
  if (static_cast<int>(mean.size()) != channels || static_cast<int>(std.size()) != channels) {
    fail_input("{} means and {} standard deviations for {} channels; write one of each for every channel", mean.size(),
               std.size(), channels);
  }
}

// Interleaves planes.
void ImageTransform::read_raw(const StoredImage& stored, Image& image) const {
  const int side = stored.raw_size;
  const size_t plane = static_cast<size_t>(side) * side;
  const size_t planes = stored.bytes.size() / plane;
  if (planes * plane != stored.bytes.size() || (planes != 1 && planes != 3)) {
    fail_sample("{} bytes are not 1 or 3 planes of {}x{} pixels", stored.bytes.size(), side, side);
  }
  if (static_cast<int>(planes) != channels_ && color_ == Color::Strict) {
    fail_sample("pixels with {} channel{} where the network needs {}; write data.color: convert", planes,
                planes == 1 ? "" : "s", channels_);
  }
  image.reshape(side, side, channels_);
  const uint8_t* from = stored.bytes.data();
  uint8_t* to = image.pixels.data();
  for (size_t i = 0; i < plane; ++i, to += channels_) {
    if (channels_ == 1) {
      to[0] = planes == 1 ? from[i] : luma(from[i], from[plane + i], from[2 * plane + i]);
    } else {
      for (size_t c = 0; c < 3; ++c) to[c] = from[(planes == 3 ? c * plane : 0) + i];
    }
  }
}

ImageTransform::Extent ImageTransform::open(const StoredImage& stored, Scratch& scratch) const {
  if (stored.raw_size > 0) {
    read_raw(stored, scratch.image);
    return {stored.raw_size, stored.raw_size};
  }
  const Decoder::Header header = scratch.decoder.open(stored.bytes, channels_, color_);
  return {header.width, header.height};
}

ImageTransform::Decoded ImageTransform::decode(const StoredImage& stored, int64_t epoch, int64_t sample,
                                               Scratch& scratch) const {
  const auto [width, height] = open(stored, scratch);
  const CropBox crop = choose_crop(width, height, size_, transform_, key_, epoch, sample);
  Decoded decoded{crop.box, visible_pixels(crop, size_, width, height), crop.mirror};
  if (stored.raw_size > 0) return decoded;

  const auto [held, eighths] = scratch.decoder.decode(decoded.visible, reduction(crop.box, size_), scratch.image);
  // To the coordinates of what is held. A reduced picture's last pixel may be cut short, its first never.
  const double scale = eighths / 8.0;
  decoded.box = {crop.box.left * scale - held.left, crop.box.top * scale - held.top, crop.box.width * scale,
                 crop.box.height * scale};
  const Span x = pixels(decoded.visible.left * scale - held.left, decoded.visible.width * scale, 0, held.width);
  const Span y = pixels(decoded.visible.top * scale - held.top, decoded.visible.height * scale, 0, held.height);
  decoded.visible = {x.begin, y.begin, x.length, y.length};
  return decoded;
}

void ImageTransform::write(const Decoded& decoded, Scratch& scratch, const Normalization& normalization,
                           float* out) const {
  if (is_whole(decoded.box, size_)) {
    copy_pixels(scratch.image, static_cast<int>(decoded.box.left), static_cast<int>(decoded.box.top), decoded.mirror,
                size_, size_, normalization, out);
  } else {
    scratch.resampler.resample(scratch.image, decoded.visible, decoded.box, decoded.mirror, size_, size_, normalization,
                               out);
  }
}

void ImageTransform::apply(const StoredImage& stored, int64_t epoch, int64_t sample, Scratch& scratch,
                           float* out) const {
  write(decode(stored, epoch, sample, scratch), scratch, normalization_, out);
}

void ImageTransform::check(const StoredImage& stored, Scratch& scratch) const {
  const auto [width, height] = open(stored, scratch);
  choose_crop(width, height, size_, transform_, key_, 0, 0);  // refuses by size alone
  if (stored.raw_size == 0) scratch.decoder.verify(scratch.image);
}

void ImageTransform::picture(const StoredImage& stored, int64_t epoch, int64_t sample, Scratch& scratch,
                             Image& out) const {
  const size_t plane = static_cast<size_t>(size_) * size_;
  if (scratch.levels.size() < plane * channels_) scratch.levels.resize(plane * channels_);
  write(decode(stored, epoch, sample, scratch), scratch, Normalization(), scratch.levels.data());
  out.reshape(size_, size_, channels_);
  for (int c = 0; c < channels_; ++c) {
    for (size_t i = 0; i < plane; ++i) {
      const float level = std::clamp(std::round(scratch.levels[c * plane + i]), 0.f, 255.f);
      out.pixels[i * channels_ + c] = static_cast<uint8_t>(level);
    }
  }
}

}  // namespace millrace::data
