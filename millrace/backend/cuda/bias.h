// What belongs to a convolution or linear layer beside its product: bias, ReLU, the bias's gradient, and the gradient
// in another type than the product has it in.
#pragma once

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

// Rows of `channels` elements each.
struct BiasShape {
  DType dtype = DType::F32;
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t pitch = channels;  // from row to row; only a bias's gradient is made of rows with room behind them
};

// In place; either may be missing.
void add_bias(const Device& device, const BiasShape& shape, void* y, const void* bias, bool relu);

size_t bias_gradient_scratch(const Device& device, const BiasShape& shape);
void bias_gradient(const Device& device, const BiasShape& shape, const void* dy, void* db, DType db_type,
                   void* scratch);

// Sums of y and of its squares, per channel: two rows of `channels` floats. Scratch as for a bias's gradient.
void channel_moments(const Device& device, const BiasShape& shape, const void* y, float* sums, void* scratch);

void convert(const Device& device, const void* from, DType from_type, float* to, int64_t elements);

}  // namespace millrace::backend::cuda
