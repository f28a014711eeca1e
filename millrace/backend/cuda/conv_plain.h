// Convolution by plain loops, for shapes that cuDNN has no engine for. Right, not fast.
#pragma once

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

class ConvLoops {
 public:
  ConvLoops(const Device& device, const NodeView& view, DType dtype);

  void forward(const void* x, const void* w, void* y) const;
  void input_grad(const void* dy, const void* w, void* dx) const;
  void weight_grad(const void* x, const void* dy, void* dw) const;

  // Extents; channels with and without padding.
  struct Extents {
    int64_t n, x_h, x_w, x_c, x_channels, y_h, y_w, y_c, y_channels;
    int64_t w_c, w_channels;  // of one filter
    graph::Window window;
    int groups;
  };

 private:
  Device device_;
  DType dtype_;
  Extents extents_{};
};

}  // namespace millrace::backend::cuda
