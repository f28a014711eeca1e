#include "millrace/backend/cuda/conv_plain.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using Extents = ConvLoops::Extents;

// One thread per element of what is written; padding is written as zero.
template <typename T>
__global__ void forward_loops(Extents e, const T* x, const T* w, T* y) {
  const int64_t all = e.n * e.y_h * e.y_w * e.y_c, stride = int64_t{gridDim.x} * blockDim.x;
  const graph::Window v = e.window;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < all; i += stride) {
    const int64_t o = i % e.y_c, ow = i / e.y_c % e.y_w, oh = i / e.y_c / e.y_w % e.y_h, n = i / e.y_c / e.y_w / e.y_h;
    float sum = 0;
    if (o < e.y_channels) {
      const int64_t group = o / (e.y_channels / e.groups);
      for (int r = 0; r < v.kernel_h; ++r) {
        for (int s = 0; s < v.kernel_w; ++s) {
          const int64_t ih = oh * v.stride_h - v.pad_h + r * v.dilation_h;
          const int64_t iw = ow * v.stride_w - v.pad_w + s * v.dilation_w;
          if (ih < 0 || ih >= e.x_h || iw < 0 || iw >= e.x_w) continue;
          const T* from = x + ((n * e.x_h + ih) * e.x_w + iw) * e.x_c + group * e.w_channels;
          const T* filter = w + ((o * v.kernel_h + r) * v.kernel_w + s) * e.w_c;
          for (int64_t c = 0; c < e.w_channels; ++c) sum += to_float(from[c]) * to_float(filter[c]);
        }
      }
    }
    y[i] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void input_grad_loops(Extents e, const T* dy, const T* w, T* dx) {
  const int64_t all = e.n * e.x_h * e.x_w * e.x_c, stride = int64_t{gridDim.x} * blockDim.x;
  const graph::Window v = e.window;
  const int64_t filters = e.y_channels / e.groups;  // of one group
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < all; i += stride) {
    const int64_t c = i % e.x_c, iw = i / e.x_c % e.x_w, ih = i / e.x_c / e.x_w % e.x_h, n = i / e.x_c / e.x_w / e.x_h;
    float sum = 0;
    if (c < e.x_channels) {
      const int64_t group = c / e.w_channels;
      for (int r = 0; r < v.kernel_h; ++r) {
        for (int s = 0; s < v.kernel_w; ++s) {
          const int64_t h = ih + v.pad_h - r * v.dilation_h, u = iw + v.pad_w - s * v.dilation_w;
          if (h < 0 || u < 0 || h % v.stride_h != 0 || u % v.stride_w != 0) continue;
          const int64_t oh = h / v.stride_h, ow = u / v.stride_w;
          if (oh >= e.y_h || ow >= e.y_w) continue;
          const T* from = dy + ((n * e.y_h + oh) * e.y_w + ow) * e.y_c;
          for (int64_t o = group * filters; o < (group + 1) * filters; ++o) {
            sum += to_float(from[o]) *
                   to_float(w[((o * v.kernel_h + r) * v.kernel_w + s) * e.w_c + c - group * e.w_channels]);
          }
        }
      }
    }
    dx[i] = from_float<T>(sum);
  }
}

// A block per element: its threads share the pixels, and are added in their order.
template <typename T>
__global__ void __launch_bounds__(128) weight_grad_loops(Extents e, const T* x, const T* dy, T* dw) {
  const graph::Window v = e.window;
  const int64_t i = blockIdx.x;
  const int64_t c = i % e.w_c, s = i / e.w_c % v.kernel_w, r = i / e.w_c / v.kernel_w % v.kernel_h,
                o = i / e.w_c / v.kernel_w / v.kernel_h;
  float sum = 0;
  if (o < e.y_channels && c < e.w_channels) {
    const int64_t from_c = o / (e.y_channels / e.groups) * e.w_channels + c;
    for (int64_t p = threadIdx.x; p < e.n * e.y_h * e.y_w; p += 128) {
      const int64_t ow = p % e.y_w, oh = p / e.y_w % e.y_h, n = p / e.y_w / e.y_h;
      const int64_t ih = oh * v.stride_h - v.pad_h + r * v.dilation_h,
                    iw = ow * v.stride_w - v.pad_w + s * v.dilation_w;
      if (ih < 0 || ih >= e.x_h || iw < 0 || iw >= e.x_w) continue;
      sum += to_float(dy[p * e.y_c + o]) * to_float(x[((n * e.x_h + ih) * e.x_w + iw) * e.x_c + from_c]);
    }
  }
  __shared__ float sums[128];
  sums[threadIdx.x] = sum;
  for (int half = 64; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) dw[i] = from_float<T>(sums[0]);
}

}  // namespace

ConvLoops::ConvLoops(const Device& device, const NodeView& view, DType dtype) : device_(device), dtype_(dtype) {
  using graph::Pass;
  const Pass pass = view.node.pass;
  const Image x(pass == Pass::InputGrad ? view.write(0) : view.read(0));
  const Image y(pass == Pass::InputGrad ? view.read(0) : pass == Pass::WeightGrad ? view.read(1) : view.write(0));
  const auto& attrs = view.attrs<graph::Conv2dAttrs>();
  const int64_t w_channels = x.channels / attrs.groups;
  extents_ = {x.n,        x.h,          x.w,         x.c, x.channels, y.h, y.w, y.c, y.channels, padded(w_channels),
              w_channels, attrs.window, attrs.groups};
}

void ConvLoops::forward(const void* x, const void* w, void* y) const {
  with_type(dtype_, [&]<typename T>() {
    const int64_t all = extents_.n * extents_.y_h * extents_.y_w * extents_.y_c;
    forward_loops<<<grid_for(device_, all, 256, 64), 256, 0, device_.stream>>>(
        extents_, static_cast<const T*>(x), static_cast<const T*>(w), static_cast<T*>(y));
  });
  MILLRACE_LAUNCHED("forward_loops");
}

void ConvLoops::input_grad(const void* dy, const void* w, void* dx) const {
  with_type(dtype_, [&]<typename T>() {
    const int64_t all = extents_.n * extents_.x_h * extents_.x_w * extents_.x_c;
    input_grad_loops<<<grid_for(device_, all, 256, 64), 256, 0, device_.stream>>>(
        extents_, static_cast<const T*>(dy), static_cast<const T*>(w), static_cast<T*>(dx));
  });
  MILLRACE_LAUNCHED("input_grad_loops");
}

void ConvLoops::weight_grad(const void* x, const void* dy, void* dw) const {
  with_type(dtype_, [&]<typename T>() {
    const auto all =
        static_cast<unsigned>(extents_.y_c * extents_.window.kernel_h * extents_.window.kernel_w * extents_.w_c);
    weight_grad_loops<<<all, 128, 0, device_.stream>>>(extents_, static_cast<const T*>(x), static_cast<const T*>(dy),
                                                       static_cast<T*>(dw));
  });
  MILLRACE_LAUNCHED("weight_grad_loops");
}

}  // namespace millrace::backend::cuda
