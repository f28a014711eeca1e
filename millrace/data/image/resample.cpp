#include "millrace/data/image/resample.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

namespace millrace::data {
namespace {

// The loops are written once and compiled twice: for any machine and, on x86-64, for AVX2, chosen when they run. (Not
// target_clones: its resolvers run before sanitizers are ready.) AVX2 without FMA: both give the same bits.
using Four = float __attribute__((vector_size(16)));

#define MILLRACE_INLINE [[gnu::always_inline]] inline

// Unaligned.
template <typename Vector, typename Element>
MILLRACE_INLINE Vector load(const Element* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename Vector>
MILLRACE_INLINE void store(float* to, Vector value) {
  std::memcpy(to, &value, sizeof value);
}

// out[i] = sum of weights[k] * rows[k * stride + i], two rows at a time.
MILLRACE_INLINE void blend_rows(const uint8_t* rows, size_t stride, const float* weights, int taps, int count,
                                float* __restrict out) {
  for (int k = 0; k < taps; k += 2) {
    const bool pair = k + 1 < taps;
    const uint8_t *a = rows + k * stride, *b = pair ? a + stride : a;
    const float weight_a = weights[k], weight_b = pair ? weights[k + 1] : 0;
    if (k == 0) {
      for (int i = 0; i < count; ++i) out[i] = weight_a * a[i] + weight_b * b[i];
    } else {
      for (int i = 0; i < count; ++i) out[i] += weight_a * a[i] + weight_b * b[i];
    }
  }
}

// One pixel: three channels and, in the last lane, what follows them, which nobody reads.
template <int kTaps>
MILLRACE_INLINE Four pixel(const float* row, const float* weights, int taps) {
  Four sum{};
  const int count = kTaps > 0 ? kTaps : taps;
  for (int k = 0; k < count; ++k) sum += weights[k] * load<Four>(row + 3 * k);
  return sum;
}

template <int kTaps>
MILLRACE_INLINE void blend_colors(const float* row, const int* first, const float* weights, int taps, int width,
                                  Four scale, Four offset, float* red, float* green, float* blue) {
  taps = kTaps > 0 ? kTaps : taps;
  int x = 0;
  for (; x + 4 <= width; x += 4, weights += 4 * taps) {
    const Four a = pixel<kTaps>(row + 3 * first[x], weights, taps) * scale + offset;
    const Four b = pixel<kTaps>(row + 3 * first[x + 1], weights + taps, taps) * scale + offset;
    const Four c = pixel<kTaps>(row + 3 * first[x + 2], weights + 2 * taps, taps) * scale + offset;
    const Four d = pixel<kTaps>(row + 3 * first[x + 3], weights + 3 * taps, taps) * scale + offset;
    const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store(red + x, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
    store(green + x, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
    store(blue + x, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  }
  for (; x < width; ++x, weights += taps) {
    const Four a = pixel<kTaps>(row + 3 * first[x], weights, taps) * scale + offset;
    red[x] = a[0], green[x] = a[1], blue[x] = a[2];
  }
}

MILLRACE_INLINE void blend_grays(const float* row, const int* first, const float* weights, int taps, int width,
                                 float scale, float offset, float* out) {
  for (int x = 0; x < width; ++x, weights += taps) {
    float sum = 0;
    for (int k = 0; k < taps; ++k) sum += weights[k] * row[first[x] + k];
    out[x] = sum * scale + offset;
  }
}

struct Work {
  const uint8_t* pixels;  // of the first visible column
  size_t stride;
  int channels, columns;  // columns: visible ones
  const int *first_row, *first_column;
  const float *row_weights, *column_weights;
  int row_taps, column_taps;
  int width, height;
  const Normalization* normalization;
  float *row, *out;
};

// Rows first: that pass runs over contiguous bytes, and leaves one row for the other, which does not, to read from
// cache.
template <int kTaps>
MILLRACE_INLINE void resample_rows(const Work& work) {
  const Four scale = load<Four>(work.normalization->scale.data()),
             offset = load<Four>(work.normalization->offset.data());
  const size_t plane = static_cast<size_t>(work.width) * work.height;
  for (int y = 0; y < work.height; ++y) {
    blend_rows(work.pixels + work.first_row[y] * work.stride, work.stride, work.row_weights + y * work.row_taps,
               work.row_taps, work.columns * work.channels, work.row);
    float* out = work.out + static_cast<size_t>(y) * work.width;
    if (work.channels == 3) {
      blend_colors<kTaps>(work.row, work.first_column, work.column_weights, work.column_taps, work.width, scale, offset,
                          out, out + plane, out + 2 * plane);
    } else {
      blend_grays(work.row, work.first_column, work.column_weights, work.column_taps, work.width, scale[0], offset[0],
                  out);
    }
  }
}

// Most pictures are reduced by less than two after the decoder's own reduction: three, four or five taps.
MILLRACE_INLINE void resample_any(const Work& work) {
  switch (work.column_taps) {
    case 2: return resample_rows<2>(work);
    case 3: return resample_rows<3>(work);
    case 4: return resample_rows<4>(work);
    case 5: return resample_rows<5>(work);
    default: return resample_rows<0>(work);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void resample_avx2(const Work& work) { resample_any(work); }
void resample_plain(const Work& work) { resample_any(work); }
void resample_best(const Work& work) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  avx2 ? resample_avx2(work) : resample_plain(work);
}
#else
void resample_best(const Work& work) { resample_any(work); }
#endif

}  // namespace

Normalization::Normalization(std::span<const float> mean, std::span<const float> std) {
  assert(mean.size() == std.size() && mean.size() <= scale.size());
  for (size_t c = 0; c < mean.size(); ++c) {
    scale[c] = 1 / std[c];
    offset[c] = -mean[c] / std[c];
  }
}

void Resampler::Axis::prepare(int new_begin, int new_end, double new_from, double new_length, int new_size,
                              bool new_mirror) {
  if (begin == new_begin && end == new_end && from == new_from && length == new_length && size == new_size &&
      mirror == new_mirror) {
    return;
  }
  begin = new_begin, end = new_end, from = new_from, length = new_length, size = new_size, mirror = new_mirror;
  const double step = length / size, reach = std::max(step, 1.0);
  // As many pixels at most have their centre less than `reach` away from the output pixel's.
  taps = std::min(static_cast<int>(std::ceil(2 * reach)), end - begin);
  first.resize(static_cast<size_t>(size));
  weights.assign(static_cast<size_t>(size) * taps, 0.f);
  for (int i = 0; i < size; ++i) {
    const double center = from + (i + 0.5) * step;
    int low = std::clamp(static_cast<int>(std::floor(center - reach + 0.5)), begin, end - 1);
    const int high = std::clamp(static_cast<int>(std::floor(center + reach + 0.5)), low + 1, end);
    // Where fewer pixels count than there are taps, near the end, the taps begin earlier and the first weigh nothing.
    low = std::min(low, end - taps);
    const int at = mirror ? size - 1 - i : i;
    first[at] = low - begin;
    float* weight = weights.data() + static_cast<size_t>(at) * taps;
    double sum = 0;
    for (int k = 0; k < taps && low + k < high; ++k) {
      const double share = 1 - std::abs(low + k + 0.5 - center) / reach;
      weight[k] = static_cast<float>(std::max(share, 0.0));
      sum += std::max(share, 0.0);
    }
    if (sum > 0) {
      for (int k = 0; k < taps; ++k) weight[k] = static_cast<float>(weight[k] / sum);
    } else {
      weight[std::clamp(static_cast<int>(center) - low, 0, taps - 1)] = 1;  // the box lies outside of what is visible
    }
  }
}

void Resampler::resample(const Image& from, const Rect& visible, const Box& box, bool mirror, int width, int height,
                         const Normalization& normalization, float* out) {
  assert(visible.left >= 0 && visible.top >= 0 && visible.width > 0 && visible.height > 0);
  assert(visible.right() <= from.width && visible.bottom() <= from.height);
  x_.prepare(visible.left, visible.right(), box.left, box.width, width, mirror);
  y_.prepare(visible.top, visible.bottom(), box.top, box.height, height, false);
  const size_t row_floats = static_cast<size_t>(visible.width) * from.channels + 4;  // 4: see pixel()
  if (row_.size() < row_floats) row_.resize(row_floats);
  resample_best({.pixels = from.row(visible.top) + static_cast<size_t>(visible.left) * from.channels,
                 .stride = static_cast<size_t>(from.width) * from.channels,
                 .channels = from.channels,
                 .columns = visible.width,
                 .first_row = y_.first.data(),
                 .first_column = x_.first.data(),
                 .row_weights = y_.weights.data(),
                 .column_weights = x_.weights.data(),
                 .row_taps = y_.taps,
                 .column_taps = x_.taps,
                 .width = width,
                 .height = height,
                 .normalization = &normalization,
                 .row = row_.data(),
                 .out = out});
}

void copy_pixels(const Image& from, int left, int top, bool mirror, int width, int height,
                 const Normalization& normalization, float* out) {
  for (int c = 0; c < from.channels; ++c) {
    const float scale = normalization.scale[c], offset = normalization.offset[c];
    for (int y = 0; y < height; ++y, out += width) {
      std::fill(out, out + width, offset);
      const int source_y = top + y;
      if (source_y < 0 || source_y >= from.height) continue;
      const uint8_t* row = from.row(source_y) + c;
      const int begin = std::max(left, 0), end = std::min(left + width, from.width);
      for (int x = begin; x < end; ++x) {
        const float level = static_cast<float>(row[static_cast<size_t>(x) * from.channels]);
        out[mirror ? width - 1 - (x - left) : x - left] = level * scale + offset;
      }
    }
  }
}

}  // namespace millrace::data
