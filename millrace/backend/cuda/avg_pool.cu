// Average and adaptive average pooling. One thread makes one vector of channels of one pixel; gradients are gathered.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/pool_places.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::OpKind;
using graph::Pass;
using graph::PoolAttrs;
using graph::Window;

template <typename T>
__device__ inline void add_scaled(const T* from, uint32_t index, float scale, Floats<T>& sum) {
  const Floats<T> floats = load(from + int64_t{index} * Vector<T>::kSize);
#pragma unroll
  for (int e = 0; e < Vector<T>::kSize; ++e) sum.at[e] += floats.at[e] * scale;
}

// Cells of a window that begins at `origin`, along one axis, that are not padding.
__device__ inline int cells_inside(int origin, int extent, int kernel, int dilation) {
  const int begin = origin >= 0 ? 0 : (-origin + dilation - 1) / dilation;
  const int end = origin >= extent ? 0 : min(kernel, (extent - origin + dilation - 1) / dilation);
  return max(end - begin, 0);
}

// What the sum of an output's window is multiplied by.
__device__ inline float average_weight(const Window& window, bool count_pad, const Plane& in, int oh, int ow) {
  if (count_pad) return 1.0f / static_cast<float>(window.kernel_h * window.kernel_w);
  const int cells = cells_inside(oh * window.stride_h - window.pad_h, in.h, window.kernel_h, window.dilation_h) *
                    cells_inside(ow * window.stride_w - window.pad_w, in.w, window.kernel_w, window.dilation_w);
  return cells > 0 ? 1.0f / static_cast<float>(cells) : 0;
}

template <typename T>
__global__ void average_forward(Places places, Plane in, Window window, bool count_pad, const T* x, T* y) {
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    const float weight = average_weight(window, count_pad, in, place.h, place.w);
    Floats<T> sum{};
    for (int kh = 0; kh < window.kernel_h; ++kh) {
      const int ih = static_cast<int>(place.h) * window.stride_h - window.pad_h + kh * window.dilation_h;
      for (int kw = 0; kw < window.kernel_w; ++kw) {
        const int iw = static_cast<int>(place.w) * window.stride_w - window.pad_w + kw * window.dilation_w;
        if (in.inside(ih, iw)) add_scaled(x, in.at(place, ih, iw), weight, sum);
      }
    }
    store(y + int64_t{i} * Vector<T>::kSize, sum);
  }
}

template <typename T>
__global__ void average_input_grad(Places places, Plane in, Plane out, Window window, bool count_pad, Divider stride_h,
                                   Divider stride_w, const T* dy, T* dx) {
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    Floats<T> sum{};
    for (int kh = window.kernel_h - 1; kh >= 0; --kh) {
      const int h = static_cast<int>(place.h) + window.pad_h - kh * window.dilation_h;
      const uint32_t oh = stride_h.quotient(max(h, 0));
      if (oh * window.stride_h != h || oh >= out.h) continue;
      for (int kw = window.kernel_w - 1; kw >= 0; --kw) {
        const int w = static_cast<int>(place.w) + window.pad_w - kw * window.dilation_w;
        const uint32_t ow = stride_w.quotient(max(w, 0));
        if (ow * window.stride_w != w || ow >= out.w) continue;
        add_scaled(dy, out.at(place, oh, ow), average_weight(window, count_pad, in, oh, ow), sum);
      }
    }
    store(dx + int64_t{i} * Vector<T>::kSize, sum);
  }
}

// The range [begin, end) of `in` that output `i` of `out` averages, along one axis - and, the two exchanged, the
// outputs that input `i` goes into. Extents below 2^16.
struct Range {
  uint32_t begin, end;

  __device__ Range(uint32_t i, uint32_t in, uint32_t out) : begin(i * in / out), end(((i + 1) * in + out - 1) / out) {}
  __device__ uint32_t size() const { return end - begin; }
};

template <typename T>
__global__ void adaptive_forward(Places places, Plane in, Plane out, const T* x, T* y) {
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    const Range h(place.h, in.h, out.h), w(place.w, in.w, out.w);
    const float weight = 1.0f / static_cast<float>(h.size() * w.size());
    Floats<T> sum{};
    for (uint32_t ih = h.begin; ih < h.end; ++ih) {
      for (uint32_t iw = w.begin; iw < w.end; ++iw) add_scaled(x, in.at(place, ih, iw), weight, sum);
    }
    store(y + int64_t{i} * Vector<T>::kSize, sum);
  }
}

template <typename T>
__global__ void adaptive_input_grad(Places places, Plane in, Plane out, const T* dy, T* dx) {
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    const Range h(place.h, out.h, in.h), w(place.w, out.w, in.w);
    Floats<T> sum{};
    for (uint32_t oh = h.begin; oh < h.end; ++oh) {
      for (uint32_t ow = w.begin; ow < w.end; ++ow) {
        const uint32_t cells = Range(oh, in.h, out.h).size() * Range(ow, in.w, out.w).size();
        add_scaled(dy, out.at(place, oh, ow), 1.0f / static_cast<float>(cells), sum);
      }
    }
    store(dx + int64_t{i} * Vector<T>::kSize, sum);
  }
}

// A single output per channel: one run of pixels, many of them on their way at a time.
template <typename T>
__global__ void global_forward(Places places, Plane in, const T* x, T* y) {
  const uint32_t area = in.h * in.w;
  const float weight = 1.0f / static_cast<float>(area);
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const uint32_t first = in.at(places.at(i), 0, 0);
    Floats<T> sum{};
#pragma unroll 8
    for (uint32_t p = 0; p < area; ++p) add_scaled(x, first + p * in.vectors, weight, sum);
    store(y + int64_t{i} * Vector<T>::kSize, sum);
  }
}

template <typename T>
__global__ void global_input_grad(Places places, Plane in, const T* dy, T* dx) {
  const float weight = 1.0f / static_cast<float>(in.h * in.w);
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    Floats<T> share{};
    add_scaled(dy, place.n * in.vectors + place.v, weight, share);
    store(dx + int64_t{i} * Vector<T>::kSize, share);
  }
}

template <typename T>
Task average_task(const Device& device, const Sides& sides, const PoolAttrs& attrs, bool grad, const T* from, T* to) {
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      const Image& made = grad ? sides.in : sides.out;
      const Places places(n, made.h, made.w, sides.vectors());
      const int grid = grid_for(device, places.count, kPoolThreads, kPoolBlocks);
      if (grad) {
        average_input_grad<<<grid, kPoolThreads, 0, device.stream>>>(
            places, sides.in_plane(), sides.out_plane(), attrs.window, attrs.count_pad, Divider(attrs.window.stride_h),
            Divider(attrs.window.stride_w), from + y_at, to + x_at);
      } else {
        average_forward<<<grid, kPoolThreads, 0, device.stream>>>(places, sides.in_plane(), attrs.window,
                                                                  attrs.count_pad, from + x_at, to + y_at);
      }
      MILLRACE_LAUNCHED("average pooling");
    });
  };
}

template <typename T>
Task adaptive_task(const Device& device, const Sides& sides, bool grad, const T* from, T* to) {
  const bool global = sides.out.h == 1 && sides.out.w == 1;
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      const Image& made = grad ? sides.in : sides.out;
      const Places places(n, made.h, made.w, sides.vectors());
      const int grid = grid_for(device, places.count, kPoolThreads, kPoolBlocks);
      const Plane in = sides.in_plane(), out = sides.out_plane();
      if (grad && global) {
        global_input_grad<<<grid, kPoolThreads, 0, device.stream>>>(places, in, from + y_at, to + x_at);
      } else if (grad) {
        adaptive_input_grad<<<grid, kPoolThreads, 0, device.stream>>>(places, in, out, from + y_at, to + x_at);
      } else if (global) {
        global_forward<<<grid, kPoolThreads, 0, device.stream>>>(places, in, from + x_at, to + y_at);
      } else {
        adaptive_forward<<<grid, kPoolThreads, 0, device.stream>>>(places, in, out, from + x_at, to + y_at);
      }
      MILLRACE_LAUNCHED("adaptive average pooling");
    });
  };
}

}  // namespace

Kernel prepare_avg_pool(const Device& device, const NodeView& view) {
  check_pass(view);
  const bool grad = view.node.pass == Pass::InputGrad;
  const DType dtype = dtype_of_read(view, 0);
  const Sides sides(view, grad ? view.write(0) : view.read(0), grad ? view.read(0) : view.write(0), dtype);
  const char* algorithm = grad ? "gather" : "vectors";
  if (view.node.kind == OpKind::AvgPool) {
    const auto attrs = view.attrs<PoolAttrs>();
    return kernel_of(algorithm, [=](const Bindings& at) {
      return with_type(dtype, [&]<typename T>() {
        return average_task<T>(device, sides, attrs, grad, at.read<T>(0), at.write<T>(0));
      });
    });
  }
  if (std::max({sides.in.h, sides.in.w, sides.out.h, sides.out.w}) > 65535) {
    throw std::invalid_argument(view.node.name + ": adaptive pooling from " + view.read(0).str() + " to " +
                                view.write(0).str() + ": at most 65535 pixels along an axis");
  }
  return kernel_of(algorithm, [=](const Bindings& at) {
    return with_type(
        dtype, [&]<typename T>() { return adaptive_task<T>(device, sides, grad, at.read<T>(0), at.write<T>(0)); });
  });
}

}  // namespace millrace::backend::cuda
