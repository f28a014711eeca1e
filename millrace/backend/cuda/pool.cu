// Pooling. One thread makes one vector of channels of one pixel, or of a patch of pixels. Gradients are gathered: the
// side of the input looks through the windows it lies in, in order, so that nothing is added atomically and every
// element is written.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::OpKind;
using graph::Pass;
using graph::PoolAttrs;
using graph::Window;

constexpr int kThreads = 256;
constexpr int kBlocks = 32;  // per multiprocessor, at most

// Division by a number known before the launch, of numbers below 2^31: an add, a multiply and a shift.
struct Divider {
  uint32_t divisor, factor, shift = 0;

  explicit Divider(int64_t by) : divisor(static_cast<uint32_t>(by)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) - divisor) * (uint64_t{1} << 32) / divisor + 1);
  }
  __device__ uint32_t quotient(uint32_t number) const { return (__umulhi(number, factor) + number) >> shift; }
  // Leaves the quotient, gives the remainder.
  __device__ uint32_t split(uint32_t& number) const {
    const uint32_t whole = number;
    number = quotient(whole);
    return whole - number * divisor;
  }
};

// Which sample, row, column and vector of channels an index means.
struct Place {
  uint32_t n, h, w, v;
};
struct Places {
  uint32_t count;
  Divider vectors, width, height;

  Places(int64_t n, int64_t h, int64_t w, int64_t v)
      : count(static_cast<uint32_t>(n * h * w * v)), vectors(v), width(w), height(h) {}
  __device__ Place at(uint32_t index) const {
    Place place;
    place.v = vectors.split(index);
    place.w = width.split(index);
    place.h = height.split(index);
    place.n = index;
    return place;
  }
};

// Pixels in vectors, of as many samples as 31 bits can number.
struct Plane {
  uint32_t h, w, vectors;

  __device__ bool inside(int ih, int iw) const {
    return static_cast<uint32_t>(ih) < h && static_cast<uint32_t>(iw) < w;
  }
  __device__ uint32_t at(const Place& place, uint32_t ih, uint32_t iw) const {
    return ((place.n * h + ih) * w + iw) * vectors + place.v;
  }
};

__device__ inline uint32_t first_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline uint32_t index_stride() { return gridDim.x * blockDim.x; }

// A window of the models, known to the compiler; it has the members of Window.
template <int kKernel, int kStride, int kPad>
struct Square {
  static constexpr int kernel_h = kKernel, kernel_w = kKernel, stride_h = kStride, stride_w = kStride;
  static constexpr int pad_h = kPad, pad_w = kPad, dilation_h = 1, dilation_w = 1;
};

// Cells that are on their way from memory together: a row of a known window.
template <typename W>
constexpr int kCellsAtOnce = 1;
template <int kKernel, int kStride, int kPad>
constexpr int kCellsAtOnce<Square<kKernel, kStride, kPad>> = kKernel;

// Max pooling compares the elements of a 32-bit word at once: each answer is a mask over the word.
struct alignas(16) Words {
  uint32_t at[4];
};

template <typename T>
struct Packed;

template <>
struct Packed<float> {
  static constexpr uint32_t kMinusInfinity = 0xFF800000u, kOnes = 1;
  __device__ static uint32_t mask(bool is) { return is ? ~0u : 0u; }
  __device__ static uint32_t exceeds(uint32_t a, uint32_t b) {
    return mask(!(__uint_as_float(a) <= __uint_as_float(b)));
  }
  __device__ static uint32_t is_number(uint32_t a) { return mask(!isnan(__uint_as_float(a))); }
  __device__ static uint32_t is_not_positive(uint32_t a) { return mask(__uint_as_float(a) <= 0); }
};

template <typename Pair, uint32_t kInfinity>
struct PackedPair {
  static constexpr uint32_t kMinusInfinity = kInfinity, kOnes = 0x00010001u;
  __device__ static Pair pair(uint32_t word) { return reinterpret_cast<const Pair&>(word); }
  // Also where one of the two is NaN.
  __device__ static uint32_t exceeds(uint32_t a, uint32_t b) { return __hgtu2_mask(pair(a), pair(b)); }
  __device__ static uint32_t is_number(uint32_t a) { return __heq2_mask(pair(a), pair(a)); }
  __device__ static uint32_t is_not_positive(uint32_t a) { return __hle2_mask(pair(a), pair(0)); }
};

template <>
struct Packed<__half> : PackedPair<__half2, 0xFC00FC00u> {};
template <>
struct Packed<__nv_bfloat16> : PackedPair<__nv_bfloat162, 0xFF80FF80u> {};

// The cells that won, one byte for each element of a vector.
template <typename T>
struct alignas(Vector<T>::kSize) Cells {
  uint32_t at[Vector<T>::kSize / 4];
};
constexpr uint32_t kNoCell = 255;  // of an output that the ReLU stops

__device__ inline Cells<float> pack(const Words& cells, const float*) {
  const uint32_t low = __byte_perm(cells.at[0], cells.at[1], 0x0040);
  return {{__byte_perm(low, __byte_perm(cells.at[2], cells.at[3], 0x0040), 0x5410)}};
}
template <typename T>
__device__ inline Cells<T> pack(const Words& cells, const T*) {
  return {{__byte_perm(cells.at[0], cells.at[1], 0x6420), __byte_perm(cells.at[2], cells.at[3], 0x6420)}};
}

template <typename T, typename W>
__global__ void max_forward(Places places, Plane plane, W window, bool relu, const Words* x, Words* y,
                            Cells<T>* argmax) {
  using P = Packed<T>;
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    const int top = static_cast<int>(place.h) * window.stride_h - window.pad_h;
    const int left = static_cast<int>(place.w) * window.stride_w - window.pad_w;
    Words best, cells{};
#pragma unroll
    for (uint32_t& word : best.at) word = P::kMinusInfinity;
    uint32_t first = ~0u;  // the first cell wins over nothing, even with minus infinity
#pragma unroll
    for (int kh = 0; kh < window.kernel_h; ++kh) {
#pragma unroll
      for (int kw = 0; kw < window.kernel_w; kw += kCellsAtOnce<W>) {
        Words values[kCellsAtOnce<W>] = {};
        bool inside[kCellsAtOnce<W>];
#pragma unroll
        for (int k = 0; k < kCellsAtOnce<W>; ++k) {
          const int ih = top + kh * window.dilation_h, iw = left + (kw + k) * window.dilation_w;
          inside[k] = plane.inside(ih, iw);
          if (inside[k]) values[k] = x[plane.at(place, ih, iw)];
        }
#pragma unroll
        for (int k = 0; k < kCellsAtOnce<W>; ++k) {
          const uint32_t cell = static_cast<uint32_t>(kh * window.kernel_w + kw + k) * P::kOnes;
          const uint32_t may = inside[k] ? ~0u : 0u;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            // The first of equals wins, and the first NaN wins for good.
            const uint32_t value = values[k].at[e];
            const uint32_t wins = may & (first | (P::exceeds(value, best.at[e]) & P::is_number(best.at[e])));
            best.at[e] = (value & wins) | (best.at[e] & ~wins);
            cells.at[e] = (cell & wins) | (cells.at[e] & ~wins);
          }
          first &= ~may;
        }
      }
    }
    if (relu) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t stopped = P::is_not_positive(best.at[e]);
        best.at[e] &= ~stopped;
        cells.at[e] = (cells.at[e] & ~stopped) | (kNoCell * P::kOnes & stopped);
      }
    }
    y[i] = best;
    if (argmax) argmax[i] = pack(cells, static_cast<const T*>(nullptr));
  }
}

// What one window gives to one of its cells.
template <typename T>
__device__ inline void add_won(const Floats<T>& dy, const Cells<T>& cells, uint32_t cell, Floats<T>& sum) {
#pragma unroll
  for (int e = 0; e < Vector<T>::kSize; ++e) {
    if ((cells.at[e / 4] >> (e % 4 * 8) & 255) == cell) sum.at[e] += dy.at[e];
  }
}

// Any window: one pixel of dx.
template <typename T>
__global__ void max_input_grad(Places places, Plane in, Plane out, Window window, Divider stride_h, Divider stride_w,
                               const T* dy, const Cells<T>* argmax, T* dx) {
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
        const uint32_t o = out.at(place, oh, ow);
        add_won(load(dy + int64_t{o} * Vector<T>::kSize), argmax[o], kh * window.kernel_w + kw, sum);
      }
    }
    store(dx + int64_t{i} * Vector<T>::kSize, sum);
  }
}

// A square window: a patch of dx, of the stride's size, so that each dy is read by few threads. Pixels (h, w) of patch
// (a, b) have h + pad in [a * stride, (a + 1) * stride), and lie in the windows a, a - 1, ...
template <typename T, int kKernel, int kStride, int kPad>
__global__ void max_input_grad_patches(Places places, Plane in, Plane out, const T* dy, const Cells<T>* argmax, T* dx) {
  constexpr int kWindows = (kKernel + kStride - 1) / kStride;
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    const int a = place.h + kPad / kStride, b = place.w + kPad / kStride;
    Vector<T> gradient[kWindows][kWindows];
    Cells<T> cells[kWindows][kWindows];
#pragma unroll
    for (int jh = 0; jh < kWindows; ++jh) {
#pragma unroll
      for (int jw = 0; jw < kWindows; ++jw) {
        const bool is = out.inside(a - jh, b - jw);
        const uint32_t o = out.at(place, a - jh, b - jw);
        gradient[jh][jw] = is ? reinterpret_cast<const Vector<T>*>(dy)[o] : Vector<T>{};
#pragma unroll
        for (uint32_t& word : cells[jh][jw].at) word = ~0u;
        if (is) cells[jh][jw] = argmax[o];
      }
    }
    Floats<T> sum[kStride][kStride] = {};
#pragma unroll
    for (int jh = kWindows - 1; jh >= 0; --jh) {
#pragma unroll
      for (int jw = kWindows - 1; jw >= 0; --jw) {
        const Floats<T> floats = load(gradient[jh][jw].at);
#pragma unroll
        for (int rh = 0; rh < kStride; ++rh) {
#pragma unroll
          for (int rw = 0; rw < kStride; ++rw) {
            const int kh = rh + kStride * jh, kw = rw + kStride * jw;
            if (kh < kKernel && kw < kKernel) add_won(floats, cells[jh][jw], kh * kKernel + kw, sum[rh][rw]);
          }
        }
      }
    }
#pragma unroll
    for (int rh = 0; rh < kStride; ++rh) {
#pragma unroll
      for (int rw = 0; rw < kStride; ++rw) {
        const int h = a * kStride + rh - kPad, w = b * kStride + rw - kPad;
        if (in.inside(h, w)) store(dx + int64_t{in.at(place, h, w)} * Vector<T>::kSize, sum[rh][rw]);
      }
    }
  }
}

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

// What goes in and what comes out, a few samples at a time where there are more vectors than 31 bits can number.
struct Sides {
  Image in, out;
  int64_t vector_size;

  Sides(const NodeView& view, const Shape& in_shape, const Shape& out_shape, DType dtype)
      : in(in_shape), out(out_shape), vector_size(16 / static_cast<int64_t>(bytes_of(dtype))) {
    if (std::max(in_vectors(), out_vectors()) > kMost) {
      throw std::invalid_argument(view.node.name + ": one sample of " + in_shape.str() + " is too large to pool");
    }
  }

  int64_t vectors() const { return in.c / vector_size; }
  Plane in_plane() const { return plane(in); }
  Plane out_plane() const { return plane(out); }

  // launch(samples, where they begin in the input, and in the output)
  template <typename Launch>
  void by_samples(const Launch& launch) const {
    const int64_t most = kMost / std::max(in_vectors(), out_vectors());
    for (int64_t first = 0; first < in.n; first += most) {
      launch(std::min(most, in.n - first), first * in_vectors() * vector_size, first * out_vectors() * vector_size);
    }
  }

 private:
  // A patch of a gradient may begin before its image and end behind it.
  static constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;

  int64_t in_vectors() const { return in.h * in.w * vectors(); }
  int64_t out_vectors() const { return out.h * out.w * vectors(); }
  Plane plane(const Image& image) const {
    return {static_cast<uint32_t>(image.h), static_cast<uint32_t>(image.w), static_cast<uint32_t>(vectors())};
  }
};

Kernel kernel_of(const char* algorithm, std::function<Task(const Bindings&)> bind) {
  Kernel kernel;
  kernel.algorithm = algorithm;
  kernel.bind = std::move(bind);
  return kernel;
}

// body(window) with one of the models' windows if it is one, otherwise with itself.
template <typename Body>
void with_window(const Window& w, const Body& body) {
  auto is = [&](int kernel, int stride, int pad) {
    return w.kernel_h == kernel && w.kernel_w == kernel && w.stride_h == stride && w.stride_w == stride &&
           w.pad_h == pad && w.pad_w == pad && w.dilation_h == 1 && w.dilation_w == 1;
  };
  if (is(3, 2, 1)) {
    body(Square<3, 2, 1>{});
  } else if (is(3, 2, 0)) {
    body(Square<3, 2, 0>{});
  } else if (is(2, 2, 0)) {
    body(Square<2, 2, 0>{});
  } else {
    body(w);
  }
}

template <typename T>
Task max_forward_task(const Device& device, const Sides& sides, const PoolAttrs& attrs, const T* x, T* y,
                      uint8_t* argmax) {
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      const Places places(n, sides.out.h, sides.out.w, sides.vectors());
      auto* cells = argmax ? reinterpret_cast<Cells<T>*>(argmax + y_at) : nullptr;
      with_window(attrs.window, [&](auto window) {
        max_forward<T><<<grid_for(device, places.count, kThreads, kBlocks), kThreads, 0, device.stream>>>(
            places, sides.in_plane(), window, attrs.relu, reinterpret_cast<const Words*>(x + x_at),
            reinterpret_cast<Words*>(y + y_at), cells);
      });
      MILLRACE_LAUNCHED("max_forward");
    });
  };
}

template <typename T>
struct MaxGrad {
  const T* dy;
  const Cells<T>* argmax;
  T* dx;
};

template <typename T, int kKernel, int kStride, int kPad>
void launch_max_grad(const Device& device, const Sides& sides, int64_t n, const MaxGrad<T>& of,
                     const Square<kKernel, kStride, kPad>&) {
  auto patches = [](int64_t extent) { return (extent - 1 + kPad) / kStride - kPad / kStride + 1; };
  const Places places(n, patches(sides.in.h), patches(sides.in.w), sides.vectors());
  max_input_grad_patches<T, kKernel, kStride, kPad>
      <<<grid_for(device, places.count, kThreads, kBlocks), kThreads, 0, device.stream>>>(
          places, sides.in_plane(), sides.out_plane(), of.dy, of.argmax, of.dx);
}

template <typename T>
void launch_max_grad(const Device& device, const Sides& sides, int64_t n, const MaxGrad<T>& of, const Window& window) {
  const Places places(n, sides.in.h, sides.in.w, sides.vectors());
  max_input_grad<<<grid_for(device, places.count, kThreads, kBlocks), kThreads, 0, device.stream>>>(
      places, sides.in_plane(), sides.out_plane(), window, Divider(window.stride_h), Divider(window.stride_w), of.dy,
      of.argmax, of.dx);
}

template <typename T>
Task max_input_grad_task(const Device& device, const Sides& sides, const Window& window, const T* dy,
                         const uint8_t* argmax, T* dx) {
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      const MaxGrad<T> of{dy + y_at, reinterpret_cast<const Cells<T>*>(argmax + y_at), dx + x_at};
      with_window(window, [&](const auto& w) { launch_max_grad(device, sides, n, of, w); });
      MILLRACE_LAUNCHED("max_input_grad");
    });
  };
}

Kernel prepare_max(const Device& device, const NodeView& view) {
  const auto attrs = view.attrs<PoolAttrs>();
  const DType dtype = dtype_of_read(view, 0);
  if (view.node.pass == Pass::InputGrad) {
    const Sides sides(view, view.write(0), view.read(0), dtype);
    return kernel_of("gather", [=](const Bindings& at) {
      return with_type(dtype, [&]<typename T>() {
        return max_input_grad_task<T>(device, sides, attrs.window, at.read<T>(0), at.read<uint8_t>(1), at.write<T>(0));
      });
    });
  }
  const Sides sides(view, view.read(0), view.write(0), dtype);
  const bool has_argmax = view.num_writes() > 1;
  if (has_argmax && attrs.window.kernel_h * attrs.window.kernel_w > 255) {
    throw std::invalid_argument(view.node.name + ": max pooling over " + std::to_string(attrs.window.kernel_h) + "x" +
                                std::to_string(attrs.window.kernel_w) +
                                ": a window of at most 255 cells can be trained");
  }
  return kernel_of("vectors", [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() {
      return max_forward_task<T>(device, sides, attrs, at.read<T>(0), at.write<T>(0),
                                 has_argmax ? at.write<uint8_t>(1) : nullptr);
    });
  });
}

template <typename T>
Task average_task(const Device& device, const Sides& sides, const PoolAttrs& attrs, bool grad, const T* from, T* to) {
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      const Image& made = grad ? sides.in : sides.out;
      const Places places(n, made.h, made.w, sides.vectors());
      const int grid = grid_for(device, places.count, kThreads, kBlocks);
      if (grad) {
        average_input_grad<<<grid, kThreads, 0, device.stream>>>(
            places, sides.in_plane(), sides.out_plane(), attrs.window, attrs.count_pad, Divider(attrs.window.stride_h),
            Divider(attrs.window.stride_w), from + y_at, to + x_at);
      } else {
        average_forward<<<grid, kThreads, 0, device.stream>>>(places, sides.in_plane(), attrs.window, attrs.count_pad,
                                                              from + x_at, to + y_at);
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
      const int grid = grid_for(device, places.count, kThreads, kBlocks);
      const Plane in = sides.in_plane(), out = sides.out_plane();
      if (grad && global) {
        global_input_grad<<<grid, kThreads, 0, device.stream>>>(places, in, from + y_at, to + x_at);
      } else if (grad) {
        adaptive_input_grad<<<grid, kThreads, 0, device.stream>>>(places, in, out, from + y_at, to + x_at);
      } else if (global) {
        global_forward<<<grid, kThreads, 0, device.stream>>>(places, in, from + x_at, to + y_at);
      } else {
        adaptive_forward<<<grid, kThreads, 0, device.stream>>>(places, in, out, from + x_at, to + y_at);
      }
      MILLRACE_LAUNCHED("adaptive average pooling");
    });
  };
}

Kernel prepare_average(const Device& device, const NodeView& view) {
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

}  // namespace

Kernel prepare_pool(const Device& device, const NodeView& view) {
  switch (view.node.pass) {
    case Pass::Forward:
    case Pass::Evaluate:
    case Pass::InputGrad:
      return view.node.kind == OpKind::MaxPool ? prepare_max(device, view) : prepare_average(device, view);
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::cuda
