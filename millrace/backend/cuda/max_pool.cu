// Max pooling. One thread makes one vector of channels of one pixel, or of a patch of pixels. Gradients are gathered:
// the side of the input looks through the windows it lies in, in order, so that nothing is added atomically and every
// element is written.
#include <type_traits>

#include "millrace/backend/cuda/cells.h"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/pool_places.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;
using graph::PoolAttrs;
using graph::Window;

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

// The cells that won, kBits for each element of a vector.
template <typename T, int kBits>
struct Cells {
  static constexpr int kBytes = Vector<T>::kSize * kBits / 8;
  using Word = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;
  static constexpr int kPerWord = static_cast<int>(sizeof(Word)) * 8 / kBits;
  alignas(kBytes) Word at[kBytes / sizeof(Word)];

  __device__ uint32_t of(int element) const {
    return at[element / kPerWord] >> (element % kPerWord * kBits) & ((1u << kBits) - 1);
  }
};

// Four bytes that are below 16, or kNoCell, side by side in 16 bits.
__device__ inline uint32_t halved(uint32_t bytes) {
  const uint32_t cells = bytes & 0x0F0F0F0Fu;
  return __byte_perm(cells | cells >> 4, 0, 0x4420);
}

template <typename T, int kBits>
__device__ inline Cells<T, kBits> pack(const Words& cells) {
  if constexpr (Vector<T>::kSize == 4) {
    const uint32_t low = __byte_perm(cells.at[0], cells.at[1], 0x0040);
    const uint32_t bytes = __byte_perm(low, __byte_perm(cells.at[2], cells.at[3], 0x0040), 0x5410);
    if constexpr (kBits == 4)
      return {{static_cast<uint16_t>(halved(bytes))}};
    else
      return {{bytes}};
  } else {
    const uint32_t first = __byte_perm(cells.at[0], cells.at[1], 0x6420);
    const uint32_t second = __byte_perm(cells.at[2], cells.at[3], 0x6420);
    if constexpr (kBits == 4)
      return {{halved(first) | halved(second) << 16}};
    else
      return {{first, second}};
  }
}

template <typename T, int kBits, typename W>
__global__ void max_forward(Places places, Plane plane, W window, bool relu, const Words* x, Words* y,
                            Cells<T, kBits>* argmax) {
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
    if (argmax) argmax[i] = pack<T, kBits>(cells);
  }
}

// What one window gives to one of its cells.
template <typename T, int kBits>
__device__ inline void add_won(const Floats<T>& dy, const Cells<T, kBits>& cells, uint32_t cell, Floats<T>& sum) {
#pragma unroll
  for (int e = 0; e < Vector<T>::kSize; ++e) {
    if (cells.of(e) == cell) sum.at[e] += dy.at[e];
  }
}

// Any window: one pixel of dx.
template <typename T, int kBits>
__global__ void max_input_grad(Places places, Plane in, Plane out, Window window, Divider stride_h, Divider stride_w,
                               const T* dy, const Cells<T, kBits>* argmax, T* dx) {
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
__global__ void max_input_grad_patches(Places places, Plane in, Plane out, const T* dy,
                                       const Cells<T, kSmallCellBits>* argmax, T* dx) {
  constexpr int kWindows = (kKernel + kStride - 1) / kStride;
  for (uint32_t i = first_index(); i < places.count; i += index_stride()) {
    const Place place = places.at(i);
    const int a = place.h + kPad / kStride, b = place.w + kPad / kStride;
    Vector<T> gradient[kWindows][kWindows];
    Cells<T, kSmallCellBits> cells[kWindows][kWindows];
#pragma unroll
    for (int jh = 0; jh < kWindows; ++jh) {
#pragma unroll
      for (int jw = 0; jw < kWindows; ++jw) {
        const bool is = out.inside(a - jh, b - jw);
        const uint32_t o = out.at(place, a - jh, b - jw);
        gradient[jh][jw] = is ? reinterpret_cast<const Vector<T>*>(dy)[o] : Vector<T>{};
#pragma unroll
        for (auto& word : cells[jh][jw].at) word = static_cast<std::decay_t<decltype(word)>>(~0u);  // no cell
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

template <int kBits>
using CellBits = std::integral_constant<int, kBits>;

// body(window, bits of a cell) with one of the models' windows if it is one, otherwise with itself.
template <typename Body>
void with_window(const Window& w, const Body& body) {
  auto is = [&](int kernel, int stride, int pad) {
    return w.kernel_h == kernel && w.kernel_w == kernel && w.stride_h == stride && w.stride_w == stride &&
           w.pad_h == pad && w.pad_w == pad && w.dilation_h == 1 && w.dilation_w == 1;
  };
  if (is(3, 2, 1)) {
    body(Square<3, 2, 1>{}, CellBits<kSmallCellBits>{});
  } else if (is(3, 2, 0)) {
    body(Square<3, 2, 0>{}, CellBits<kSmallCellBits>{});
  } else if (is(2, 2, 0)) {
    body(Square<2, 2, 0>{}, CellBits<kSmallCellBits>{});
  } else if (cell_bits(w) == kSmallCellBits) {
    body(w, CellBits<kSmallCellBits>{});
  } else {
    body(w, CellBits<8>{});
  }
}

template <typename T, int kBits, typename Byte>
auto* cells_at(Byte* argmax, int64_t element) {
  using Of = std::conditional_t<std::is_const_v<Byte>, const Cells<T, kBits>, Cells<T, kBits>>;
  return reinterpret_cast<Of*>(argmax) + element / Vector<T>::kSize;
}

template <typename T>
Task max_forward_task(const Device& device, const Sides& sides, const PoolAttrs& attrs, const T* x, T* y,
                      uint8_t* argmax) {
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      const Places places(n, sides.out.h, sides.out.w, sides.vectors());
      with_window(attrs.window, [&](auto window, auto bits) {
        auto* cells = argmax ? cells_at<T, bits>(argmax, y_at) : nullptr;
        max_forward<T, bits>
            <<<grid_for(device, places.count, kPoolThreads, kPoolBlocks), kPoolThreads, 0, device.stream>>>(
                places, sides.in_plane(), window, attrs.relu, reinterpret_cast<const Words*>(x + x_at),
                reinterpret_cast<Words*>(y + y_at), cells);
      });
      MILLRACE_LAUNCHED("max_forward");
    });
  };
}

template <typename T, int kBits>
struct MaxGrad {
  const T* dy;
  const Cells<T, kBits>* argmax;
  T* dx;
};

template <typename T, int kKernel, int kStride, int kPad>
void launch_max_grad(const Device& device, const Sides& sides, int64_t n, const MaxGrad<T, kSmallCellBits>& of,
                     const Square<kKernel, kStride, kPad>&) {
  auto patches = [](int64_t extent) { return (extent - 1 + kPad) / kStride - kPad / kStride + 1; };
  const Places places(n, patches(sides.in.h), patches(sides.in.w), sides.vectors());
  max_input_grad_patches<T, kKernel, kStride, kPad>
      <<<grid_for(device, places.count, kPoolThreads, kPoolBlocks), kPoolThreads, 0, device.stream>>>(
          places, sides.in_plane(), sides.out_plane(), of.dy, of.argmax, of.dx);
}

template <typename T, int kBits>
void launch_max_grad(const Device& device, const Sides& sides, int64_t n, const MaxGrad<T, kBits>& of,
                     const Window& window) {
  const Places places(n, sides.in.h, sides.in.w, sides.vectors());
  max_input_grad<<<grid_for(device, places.count, kPoolThreads, kPoolBlocks), kPoolThreads, 0, device.stream>>>(
      places, sides.in_plane(), sides.out_plane(), window, Divider(window.stride_h), Divider(window.stride_w), of.dy,
      of.argmax, of.dx);
}

template <typename T>
Task max_input_grad_task(const Device& device, const Sides& sides, const Window& window, const T* dy,
                         const uint8_t* argmax, T* dx) {
  return [=](const StepContext&) {
    sides.by_samples([&](int64_t n, int64_t x_at, int64_t y_at) {
      with_window(window, [&](const auto& w, auto bits) {
        const MaxGrad<T, bits> of{dy + y_at, cells_at<T, bits>(argmax, y_at), dx + x_at};
        launch_max_grad(device, sides, n, of, w);
      });
      MILLRACE_LAUNCHED("max_input_grad");
    });
  };
}

}  // namespace

Kernel prepare_max_pool(const Device& device, const NodeView& view) {
  check_pass(view);
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

}  // namespace millrace::backend::cuda
