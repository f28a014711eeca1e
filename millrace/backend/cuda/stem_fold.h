// The convolution that reads the images has three channels: too few for the matrix units. So the images are stored
// folded. A stored pixel (i, j) holds the D x D pixels of the image from (i B - P, j B - P) on, as channels (c, dh,
// dw); the convolution becomes one over those channels with fewer places.
//
//   stride s > 1   B = D = s              s x s pixels become channels, each once: a 7x7 convolution of stride 2 over
//                                         3 channels is a 4x4 one of stride 1 over 12, and patches of 16x16 that do
//                                         not overlap become a product over 768
//   stride 1       B = 1, D = k           every place of a small window: a 3x3 convolution is a 1x1 one over 27
//
// P is the padding, rounded up to whole steps: what is stored has it, so that the folded convolution needs none.
// Free of CUDA: kernels and tests share the arithmetic.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/graph/graph.h"

namespace millrace::backend::cuda {

struct Fold {
  int64_t n = 0, channels = 0, h = 0, w = 0;  // of the images
  int step = 1, origin = 0, depth = 1;        // B, P, D
  int taps = 1;                               // of the folded convolution, along each axis
  int kernel = 1, pad = 0;                    // of the convolution as the model has it
  int64_t stored_h = 0, stored_w = 0, stored_c = 0;

  constexpr int64_t elements() const { return n * stored_h * stored_w * stored_c; }
  constexpr int64_t filter_elements() const { return taps * taps * stored_c; }

  // Where in plain N x C x H x W images the stored element lies; -1: outside.
  constexpr int64_t pixel_of(int64_t stored) const {
    const int64_t k = stored % stored_c, j = stored / stored_c % stored_w, row = stored / stored_c / stored_w;
    const int64_t i = row % stored_h, sample = row / stored_h;
    const int64_t c = k / (depth * depth);
    const int64_t ih = i * step - origin + k / depth % depth, iw = j * step - origin + k % depth;
    const bool inside = c < channels && ih >= 0 && ih < h && iw >= 0 && iw < w;
    return inside ? ((sample * channels + c) * h + ih) * w + iw : -1;
  }

  // Where in the weight, O x H x W x I with I padded to `padded_channels`, the element of the folded one lies; -1:
  // nowhere.
  constexpr int64_t place_of(int64_t folded, int64_t padded_channels) const {
    const int64_t k = folded % stored_c, s_tap = folded / stored_c % taps, r_tap = folded / stored_c / taps % taps;
    const int64_t o = folded / filter_elements(), c = k / (depth * depth);
    const int64_t r = r_tap * step + k / depth % depth + pad - origin;
    const int64_t s = s_tap * step + k % depth + pad - origin;
    if (c >= channels || r < 0 || r >= kernel || s < 0 || s >= kernel) return -1;
    return ((o * kernel + r) * kernel + s) * padded_channels + c;
  }
};

// Nothing where the images are read by something else, or folding does not help.
inline std::optional<Fold> stem_fold(const graph::Graph& graph) {
  const graph::Op* stem = nullptr;
  for (const graph::Op& op : graph.ops) {
    for (graph::ValueId input : op.inputs) {
      if (input != graph.features) continue;
      if (stem || op.kind != graph::OpKind::Conv2d) return std::nullopt;
      stem = &op;
    }
  }
  if (!stem) return std::nullopt;
  const auto& attrs = std::get<graph::Conv2dAttrs>(stem->attrs);
  const graph::Window& v = attrs.window;
  const Shape &x = graph.values[graph.features].shape, &y = graph.values[stem->output].shape;
  const bool square = v.kernel_h == v.kernel_w && v.stride_h == v.stride_w && v.pad_h == v.pad_w;
  if (!square || v.dilation_h != 1 || v.dilation_w != 1 || attrs.groups != 1) return std::nullopt;

  Fold fold;
  fold.n = x[0], fold.channels = x[1], fold.h = x[2], fold.w = x[3];
  fold.kernel = v.kernel_h, fold.pad = v.pad_h;
  if (v.stride_h > 1) {
    const int s = v.stride_h;
    const bool patches = v.kernel_h == s && v.pad_h == 0 && x[1] < 8;
    if ((x[1] * s * s > 64 && !patches) || v.kernel_h < s) return std::nullopt;
    fold.step = fold.depth = s;
    fold.origin = (v.pad_h + s - 1) / s * s;
    fold.taps = (v.kernel_h - 1 - v.pad_h + fold.origin) / s + 1;
  } else {
    if (x[1] * v.kernel_h * v.kernel_h > 32) return std::nullopt;
    fold.origin = v.pad_h;
    fold.depth = v.kernel_h;
  }
  fold.stored_h = y[2] + fold.taps - 1;
  fold.stored_w = y[3] + fold.taps - 1;
  // Whole vectors, as the matrix units want them; nobody else reads it.
  const int64_t vector = is_half(graph.dtype) ? 8 : 4;
  fold.stored_c = (x[1] * fold.depth * fold.depth + vector - 1) / vector * vector;
  return fold;
}

}  // namespace millrace::backend::cuda
