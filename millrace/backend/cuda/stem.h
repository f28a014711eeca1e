// Images and weights of the convolution that reads the images, folded (stem_fold.h).
#pragma once

#include "millrace/backend/cuda/device.h"
#include "millrace/backend/cuda/stem_fold.h"

namespace millrace::backend::cuda {

// `plain`: N x C x H x W floats of `rows` samples, on the device; `to`: where the first of them goes.
void fold_images(const Device& device, const Fold& fold, const float* plain, int64_t rows, void* to, DType dtype);
// Between the weight as it is stored and that of the folded convolution, `filters` of them.
void fold_weight(const Device& device, const Fold& fold, const void* weight, int64_t filters, void* folded,
                 DType dtype);
void unfold_weight(const Device& device, const Fold& fold, const void* folded, int64_t filters, void* weight,
                   DType folded_type, DType weight_type);

}  // namespace millrace::backend::cuda
