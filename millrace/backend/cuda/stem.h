// The convolution that reads the images has three channels: too few for the matrix units. So the images are stored
// folded. A stored pixel (i, j) holds the D x D pixels of the image from (i B - P, j B - P) on, as channels (c, dh,
// dw); the convolution becomes one over those channels with fewer places.
//
//   stride s > 1   B = D = s              s x s pixels become channels, each once: a 7x7 convolution of stride 2 over
//                                         3 channels is a 4x4 one of stride 1 over 12
//   stride 1       B = 1, D = k           every place of a small window: a 3x3 convolution is a 1x1 one over 27
//
// P is the padding, rounded up to whole steps: what is stored has it, so that the folded convolution needs none.
#pragma once

#include <optional>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

struct Fold {
  int64_t n = 0, channels = 0, h = 0, w = 0;  // of the images
  int step = 1, origin = 0, depth = 1;        // B, P, D
  int taps = 1;                               // of the folded convolution, along each axis
  int kernel = 1, pad = 0;                    // of the convolution as the model has it
  int64_t stored_h = 0, stored_w = 0, stored_c = 0;

  int64_t elements() const { return n * stored_h * stored_w * stored_c; }
};

// Nothing where the images are read by something else, or folding does not help.
std::optional<Fold> stem_fold(const graph::Graph& graph);

// `plain`: N x C x H x W floats of `rows` samples, on the device; `to`: where the first of them goes.
void fold_images(const Device& device, const Fold& fold, const float* plain, int64_t rows, void* to, DType dtype);
// Between the weight as it is stored and that of the folded convolution, `filters` of them.
void fold_weight(const Device& device, const Fold& fold, const void* weight, int64_t filters, void* folded,
                 DType dtype);
void unfold_weight(const Device& device, const Fold& fold, const void* folded, int64_t filters, void* weight,
                   DType folded_type, DType weight_type);

}  // namespace millrace::backend::cuda
