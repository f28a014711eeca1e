#include "millrace/data/image/crop.h"

#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

// Blocks of the stream: attempts from 0 on, the mirror far from them.
constexpr uint64_t kMirrorBlock = uint64_t{1} << 32;
constexpr uint64_t kPadBlock = 0;

double between(double low, double high, uint32_t word) { return low + (high - low) * (word * 0x1p-32); }

// Evenly in [0, count).
int place(int count, uint32_t word) { return static_cast<int>((uint64_t{word} * static_cast<uint64_t>(count)) >> 32); }

// Python's round(): halves go to the even neighbour.
int round_even(double value) { return static_cast<int>(std::nearbyint(value)); }

CropBox whole_pixels(int left, int top, int width, int height) {
  return {.box = {static_cast<double>(left), static_cast<double>(top), static_cast<double>(width),
                  static_cast<double>(height)}};
}

}  // namespace

CropBox random_resized_crop(int width, int height, const job::Transform& transform, const RandomStream& random) {
  const double area = static_cast<double>(width) * height;
  const double min_log = std::log(transform.min_aspect), max_log = std::log(transform.max_aspect);
  for (int attempt = 0; attempt < transform.attempts; ++attempt) {
    const RandomBlock words = random.at(static_cast<uint64_t>(attempt));
    const double part = area * between(transform.min_area, transform.max_area, words[0]);
    const double aspect = std::exp(between(min_log, max_log, words[1]));
    const double w = std::nearbyint(std::sqrt(part * aspect)), h = std::nearbyint(std::sqrt(part / aspect));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const int cut_width = static_cast<int>(w), cut_height = static_cast<int>(h);
    return whole_pixels(place(width - cut_width + 1, words[2]), place(height - cut_height + 1, words[3]), cut_width,
                        cut_height);
  }
  const double aspect = static_cast<double>(width) / height;
  int cut_width = width, cut_height = height;
  if (aspect < transform.min_aspect) cut_height = std::clamp(round_even(width / transform.min_aspect), 1, height);
  if (aspect > transform.max_aspect) cut_width = std::clamp(round_even(height * transform.max_aspect), 1, width);
  return whole_pixels((width - cut_width) / 2, (height - cut_height) / 2, cut_width, cut_height);
}

CropBox center_crop(int width, int height, int size, const job::Transform& transform) {
  const int shorter = std::min(width, height);
  const auto resized = [&](int side) {  // torchvision cuts the long side to a whole number of pixels
    return side == shorter ? transform.short_side
                           : static_cast<int>(static_cast<int64_t>(transform.short_side) * side / shorter);
  };
  const int resized_width = resized(width), resized_height = resized(height);
  const int cut = std::min(size, transform.short_side);
  const double step_x = static_cast<double>(width) / resized_width;
  const double step_y = static_cast<double>(height) / resized_height;
  const int left = round_even((resized_width - cut) / 2.0), top = round_even((resized_height - cut) / 2.0);
  return {.box = {left * step_x, top * step_y, cut * step_x, cut * step_y}, .smooth_over_edge = true};
}

CropBox pad_crop(int width, int height, int size, const job::Transform& transform, const RandomStream& random) {
  const int spare_x = width + 2 * transform.pad - size, spare_y = height + 2 * transform.pad - size;
  if (spare_x < 0 || spare_y < 0) {
    fail_sample(
        "picture of {}x{} pixels with {} of padding around has no part of {}x{}; write a larger pad, or another "
        "transform, e.g. random_resized_crop",
        width, height, transform.pad, size, size);
  }
  const RandomBlock words = random.at(kPadBlock);
  return whole_pixels(place(spare_x + 1, words[0]) - transform.pad, place(spare_y + 1, words[1]) - transform.pad, size,
                      size);
}

CropBox resize_all(int width, int height) { return whole_pixels(0, 0, width, height); }

bool is_mirrored(const job::Transform& transform, const RandomStream& random) {
  return between(0, 1, random.at(kMirrorBlock)[0]) < transform.mirror;
}

CropBox choose_crop(int width, int height, int size, const job::Transform& transform, uint64_t key, int64_t epoch,
                    int64_t sample) {
  const RandomStream random(key, static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample));
  CropBox crop;
  switch (transform.kind) {
    case job::TransformKind::Auto: fail_input("transform: auto stands for another kind, which depends on the data");
    case job::TransformKind::RandomResizedCrop: crop = random_resized_crop(width, height, transform, random); break;
    case job::TransformKind::PadCrop: crop = pad_crop(width, height, size, transform, random); break;
    case job::TransformKind::CenterCrop: crop = center_crop(width, height, size, transform); break;
    case job::TransformKind::Resize: crop = resize_all(width, height); break;
  }
  crop.mirror = is_mirrored(transform, random);
  return crop;
}

int reduction(const Box& box, int size) {
  for (const int eighths : {1, 2, 4}) {
    if (box.width * eighths >= 8.0 * size && box.height * eighths >= 8.0 * size) return eighths;
  }
  return 8;
}

}  // namespace millrace::data
