// Each row, along the last axis, is read once into the registers of a warp, or of a block where it is wide; rows wider
// than that are read again. Statistics look at it twice: a first mean, then the sums of what differs from it - its
// square for the variance, itself for what rounding left of the mean. Gradients of scale and shift are sums over rows:
// blocks of rows leave theirs in scratch, and a second kernel adds those in their order.
#include <algorithm>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kSlots = 32;  // columns a thread holds

// Everything a pass touches; what it does not use is null.
template <typename T>
struct Operands {
  const T *x, *dy;
  const float *scale, *shift, *saved;
  T *y, *dx;
  float *saved_out, *dscale, *dshift;
  float* partial;  // [block][2][width]
  int64_t rows;
  int width;
  float epsilon;
};

// Neighbouring columns that are read and written as one: 16 bytes of values, or one value where rows do not begin at
// multiples of that.
template <int kSize>
struct Piece {
  float at[kSize];
};

template <int kSize, typename U>
__device__ Piece<kSize> load_piece(const U* from) {
  Piece<kSize> piece;
  if constexpr (kSize == 1) {
    piece.at[0] = to_float(*from);
  } else {
#pragma unroll
    for (int first = 0; first < kSize; first += Vector<U>::kSize) {
      const Floats<U> floats = load(from + first);
#pragma unroll
      for (int k = 0; k < Vector<U>::kSize; ++k) piece.at[first + k] = floats.at[k];
    }
  }
  return piece;
}

template <int kSize, typename T>
__device__ void store_piece(T* to, const Piece<kSize>& piece) {
  if constexpr (kSize == 1) {
    *to = from_float<T>(piece.at[0]);
  } else {
    static_assert(kSize == Vector<T>::kSize);
    Floats<T> floats;
#pragma unroll
    for (int k = 0; k < kSize; ++k) floats.at[k] = piece.at[k];
    store(to, floats);
  }
}

// How a row is spread over threads: kGroup of them, pieces of kPiece columns, and whether they hold it.
template <int kGroup_, int kPiece_, bool kHolds_>
struct Spread {
  static constexpr int kGroup = kGroup_, kPiece = kPiece_;
  static constexpr bool kHolds = kHolds_;
  static constexpr int kPieces = kHolds ? kSlots / kPiece : 1;

  // visit(piece, column) for each piece of the thread; `piece` is its place among the thread's.
  template <typename Visit>
  __device__ static void each(int width, Visit&& visit) {
    const int thread = static_cast<int>(threadIdx.x) % kGroup;
    if constexpr (kHolds) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int column = (piece * kGroup + thread) * kPiece;
        if (column < width) visit(piece, column);
      }
    } else {
      for (int column = thread * kPiece; column < width; column += kGroup * kPiece) visit(0, column);
    }
  }
  __device__ static int64_t row() {
    return int64_t{blockIdx.x} * (kThreads / kGroup) + static_cast<int>(threadIdx.x) / kGroup;
  }
  static unsigned blocks(int64_t rows) {
    constexpr int kRows = kThreads / kGroup;
    return static_cast<unsigned>((rows + kRows - 1) / kRows);
  }
};

// A row of values as its threads see it.
template <typename S, typename T>
struct Row {
  const T* from;
  Piece<S::kPiece> held[S::kPieces];

  __device__ Row(const T* row, int width) : from(row) {
    if constexpr (S::kHolds) {
      S::each(width, [&](int piece, int column) { held[piece] = load_piece<S::kPiece>(from + column); });
    }
  }
  __device__ Piece<S::kPiece> at(int piece, int column) const {
    if constexpr (S::kHolds) return held[piece];
    return load_piece<S::kPiece>(from + column);
  }
};

struct Sums {
  float first = 0, second = 0;
};

// Over the threads of a row; all get the same.
template <int kGroup>
__device__ Sums add_over_row(Sums sums) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sums.first += __shfl_xor_sync(~0u, sums.first, distance);
    sums.second += __shfl_xor_sync(~0u, sums.second, distance);
  }
  if constexpr (kGroup > kWarp) {
    static_assert(kGroup == kThreads);
    __shared__ Sums of_warps[kThreads / kWarp];
    __syncthreads();  // the sums before these have been read
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sums;
    __syncthreads();
    sums = {};
#pragma unroll
    for (int warp = 0; warp < kThreads / kWarp; ++warp) {
      sums.first += of_warps[warp].first;
      sums.second += of_warps[warp].second;
    }
  }
  return sums;
}

// The end of the last row is padded to eight elements: they become zero.
template <typename S, typename T>
__device__ void clear_end(const Operands<T>& o, int64_t row, T* to) {
  const int64_t elements = o.rows * o.width;
  const int64_t at = elements + static_cast<int>(threadIdx.x) % S::kGroup;
  if (row == o.rows - 1 && at < padded(elements)) to[at] = from_float<T>(0);
}

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads) layer_norm_forward(Operands<T> o) {
  constexpr int kPiece = S::kPiece;
  const int64_t n = S::row();
  if (n >= o.rows) return;
  const Row<S, T> x(o.x + n * o.width, o.width);
  const float share = 1.0f / static_cast<float>(o.width);

  Sums total;
  S::each(o.width, [&](int piece, int column) {
    const Piece<kPiece> values = x.at(piece, column);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) total.first += values.at[k];
  });
  const float first = add_over_row<S::kGroup>(total).first * share;

  Sums off;
  S::each(o.width, [&](int piece, int column) {
    const Piece<kPiece> values = x.at(piece, column);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
      const float d = values.at[k] - first;
      off.first += d;
      off.second += d * d;
    }
  });
  off = add_over_row<S::kGroup>(off);
  // x - mean is (x - first) - rest: a mean in one float would be too coarse where it is far larger than the deviation.
  const float rest = off.first * share;
  float variance = off.second * share - rest * rest;
  if (variance < 0) variance = 0;  // NaN stays
  const float invstd = 1.0f / sqrtf(variance + o.epsilon);

  T* y = o.y + n * o.width;
  S::each(o.width, [&](int piece, int column) {
    Piece<kPiece> values = x.at(piece, column);
    const Piece<kPiece> scale = load_piece<kPiece>(o.scale + column), shift = load_piece<kPiece>(o.shift + column);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
      values.at[k] = ((values.at[k] - first) - rest) * invstd * scale.at[k] + shift.at[k];
    }
    store_piece(y + column, values);
  });
  clear_end<S>(o, n, o.y);
  if (o.saved_out && threadIdx.x % S::kGroup == 0) {
    o.saved_out[n] = first + rest;
    o.saved_out[o.rows + n] = invstd;
  }
}

// dx = invstd (g - mean(g) - xhat mean(g xhat)), g being dy scale. Each piece is read before it is written, by one
// thread: dx may lie over dy or x.
template <typename S, typename T>
__global__ void __launch_bounds__(kThreads) layer_norm_input_grad(Operands<T> o) {
  constexpr int kPiece = S::kPiece;
  const int64_t n = S::row();
  if (n >= o.rows) return;
  const Row<S, T> x(o.x + n * o.width, o.width), dy(o.dy + n * o.width, o.width);
  const float mean = o.saved[n], invstd = o.saved[o.rows + n];

  Sums sums;
  S::each(o.width, [&](int piece, int column) {
    const Piece<kPiece> values = x.at(piece, column), gradients = dy.at(piece, column);
    const Piece<kPiece> scale = load_piece<kPiece>(o.scale + column);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
      const float gradient = gradients.at[k] * scale.at[k];
      sums.first += gradient;
      sums.second += gradient * (values.at[k] - mean);
    }
  });
  sums = add_over_row<S::kGroup>(sums);
  const float share = 1.0f / static_cast<float>(o.width);
  const float offset = sums.first * share, factor = sums.second * invstd * invstd * share;

  T* dx = o.dx + n * o.width;
  S::each(o.width, [&](int piece, int column) {
    const Piece<kPiece> values = x.at(piece, column);
    Piece<kPiece> gradients = dy.at(piece, column);
    const Piece<kPiece> scale = load_piece<kPiece>(o.scale + column);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
      gradients.at[k] = invstd * (gradients.at[k] * scale.at[k] - offset - (values.at[k] - mean) * factor);
    }
    store_piece(dx + column, gradients);
  });
  clear_end<S>(o, n, o.dx);
}

// Blocks of rows times groups of columns: a warp is one row high and a piece for each of its lanes wide.
struct WeightGrid {
  static constexpr int kHeight = kThreads / kWarp;
  dim3 blocks;

  WeightGrid(const Device& device, int64_t rows, int width, int piece) {
    const int64_t groups = (width + kWarp * piece - 1) / (kWarp * piece);
    // As many blocks as run at once, each with some rows for every warp.
    const int64_t wanted = std::max<int64_t>(1, int64_t{device.multiprocessors} * 4 / groups);
    const int64_t useful = std::max<int64_t>(1, rows / (kHeight * 8));
    blocks = dim3(static_cast<unsigned>(std::min(wanted, useful)), static_cast<unsigned>(groups));
  }
  size_t scratch_bytes(int width) const { return size_t{blocks.x} * 2 * static_cast<size_t>(width) * sizeof(float); }
};

template <int kPiece, typename T>
__global__ void __launch_bounds__(kThreads) layer_norm_weight_parts(Operands<T> o) {
  constexpr int kHeight = WeightGrid::kHeight;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int column = (static_cast<int>(blockIdx.y) * kWarp + lane) * kPiece;
  Piece<kPiece> scale{}, shift{};
  if (column < o.width) {
#pragma unroll 4
    for (int64_t n = int64_t{blockIdx.x} * kHeight + warp; n < o.rows; n += int64_t{gridDim.x} * kHeight) {
      const Piece<kPiece> values = load_piece<kPiece>(o.x + n * o.width + column);
      const Piece<kPiece> gradients = load_piece<kPiece>(o.dy + n * o.width + column);
      const float mean = o.saved[n], invstd = o.saved[o.rows + n];
#pragma unroll
      for (int k = 0; k < kPiece; ++k) {
        scale.at[k] += gradients.at[k] * ((values.at[k] - mean) * invstd);
        shift.at[k] += gradients.at[k];
      }
    }
  }
  // By column first: neighbouring lanes are then in different banks.
  __shared__ float shared[2][kHeight][kPiece][kWarp];
#pragma unroll
  for (int k = 0; k < kPiece; ++k) {
    shared[0][warp][k][lane] = scale.at[k];
    shared[1][warp][k][lane] = shift.at[k];
  }
  __syncthreads();
  // Of both sums, a thread adds some of the group's columns over the warps.
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kPiece * kWarp; i += kThreads) {
    const int which = i / (kPiece * kWarp), k = i % kPiece, from = i / kPiece % kWarp;
    const int to = (static_cast<int>(blockIdx.y) * kWarp + from) * kPiece + k;
    if (to >= o.width) continue;
    float sum = 0;
#pragma unroll
    for (int each = 0; each < kHeight; ++each) sum += shared[which][each][k][from];
    o.partial[(int64_t{blockIdx.x} * 2 + which) * o.width + to] = sum;
  }
}

// A warp's width of columns for each block; its warps share the parts. blockIdx.y: dscale or dshift.
__global__ void __launch_bounds__(kThreads)
    layer_norm_weight_totals(const float* partial, int num_parts, int width, float* dscale, float* dshift) {
  constexpr int kHeight = WeightGrid::kHeight;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int column = static_cast<int>(blockIdx.x) * kWarp + lane;
  double sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int part = warp; part < num_parts; part += kHeight) {
      sum += partial[(int64_t{part} * 2 + blockIdx.y) * width + column];
    }
  }
  __shared__ double shared[kHeight][kWarp];
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= padded(width)) return;
  for (int each = 1; each < kHeight; ++each) sum += shared[each][lane];
  (blockIdx.y == 0 ? dscale : dshift)[column] = static_cast<float>(sum);  // zero behind the width
}

template <typename T>
Operands<T> geometry(const NodeView& view) {
  const Shape& shape = view.read(0);  // x, or dy which has its shape
  Operands<T> o{};
  o.rows = shape.rows();
  o.width = static_cast<int>(shape.width());
  o.epsilon = static_cast<float>(view.attrs<graph::LayerNormAttrs>().epsilon);
  return o;
}

// body.operator()<Spread>() for the rows of `width` columns of T.
template <typename T, typename Body>
Task with_spread(int width, Body&& body) {
  const auto with_piece = [&]<int kPiece>() -> Task {
    if (width <= kWarp * kSlots) return body.template operator()<Spread<kWarp, kPiece, true>>();
    if (width <= kThreads * kSlots) return body.template operator()<Spread<kThreads, kPiece, true>>();
    return body.template operator()<Spread<kThreads, kPiece, false>>();
  };
  constexpr int kSize = Vector<T>::kSize;
  return width % kSize == 0 ? with_piece.template operator()<kSize>() : with_piece.template operator()<1>();
}

const char* algorithm_for(int width) {
  return width <= kWarp * kSlots      ? "warp a row"
         : width <= kThreads * kSlots ? "block a row"
                                      : "block a row, read again";
}

template <typename T>
Kernel prepare_forward(const Device& device, const NodeView& view) {
  const Operands<T> fixed = geometry<T>(view);
  const bool saves = view.num_writes() > 1;
  return {algorithm_for(fixed.width), 0, [=](const Bindings& bind) -> Task {
            Operands<T> o = fixed;
            o.x = bind.read<T>(0);
            o.scale = bind.read<float>(1);
            o.shift = bind.read<float>(2);
            o.y = bind.write<T>(0);
            o.saved_out = saves ? bind.write<float>(1) : nullptr;
            return with_spread<T>(o.width, [&]<typename S>() -> Task {
              return [=](const StepContext&) {
                layer_norm_forward<S><<<S::blocks(o.rows), kThreads, 0, device.stream>>>(o);
                MILLRACE_LAUNCHED("layer_norm_forward");
              };
            });
          }};
}

template <typename T>
Kernel prepare_input_grad(const Device& device, const NodeView& view) {
  const Operands<T> fixed = geometry<T>(view);
  return {algorithm_for(fixed.width), 0, [=](const Bindings& bind) -> Task {
            Operands<T> o = fixed;
            o.dy = bind.read<T>(0);
            o.x = bind.read<T>(1);
            o.scale = bind.read<float>(2);
            o.saved = bind.read<float>(3);
            o.dx = bind.write<T>(0);
            return with_spread<T>(o.width, [&]<typename S>() -> Task {
              return [=](const StepContext&) {
                layer_norm_input_grad<S><<<S::blocks(o.rows), kThreads, 0, device.stream>>>(o);
                MILLRACE_LAUNCHED("layer_norm_input_grad");
              };
            });
          }};
}

template <typename T>
Kernel prepare_weight_grad(const Device& device, const NodeView& view) {
  const Operands<T> fixed = geometry<T>(view);
  constexpr int kSize = Vector<T>::kSize;
  const bool vectors = fixed.width % kSize == 0;
  const WeightGrid grid(device, fixed.rows, fixed.width, vectors ? kSize : 1);
  return {"parts, then totals", grid.scratch_bytes(fixed.width), [=](const Bindings& bind) -> Task {
            Operands<T> o = fixed;
            o.dy = bind.read<T>(0);
            o.x = bind.read<T>(1);
            o.saved = bind.read<float>(2);
            o.dscale = bind.write<float>(0);
            o.dshift = bind.write<float>(1);
            o.partial = static_cast<float*>(bind.scratch);
            const auto parts = vectors ? layer_norm_weight_parts<kSize, T> : layer_norm_weight_parts<1, T>;
            const dim3 totals(static_cast<unsigned>((o.width + kWarp - 1) / kWarp), 2);
            return [=](const StepContext&) {
              parts<<<grid.blocks, kThreads, 0, device.stream>>>(o);
              MILLRACE_LAUNCHED("layer_norm_weight_parts");
              layer_norm_weight_totals<<<totals, kThreads, 0, device.stream>>>(
                  o.partial, static_cast<int>(grid.blocks.x), o.width, o.dscale, o.dshift);
              MILLRACE_LAUNCHED("layer_norm_weight_totals");
            };
          }};
}

}  // namespace

Kernel prepare_layer_norm(const Device& device, const NodeView& view) {
  if (view.read(0).rank() == 4) refuse_shape(view, "layer norm takes N x D or N x L x D");
  return with_type(dtype_of_read(view, 0), [&]<typename T>() -> Kernel {
    switch (view.node.pass) {
      case Pass::Forward:
      case Pass::Evaluate: return prepare_forward<T>(device, view);
      case Pass::InputGrad: return prepare_input_grad<T>(device, view);
      case Pass::WeightGrad: return prepare_weight_grad<T>(device, view);
      default: refuse_pass(view);
    }
  });
}

}  // namespace millrace::backend::cuda
