// Attention on tensor cores, for sixteen bits: a warp has sixteen rows, whose accumulators of one product are, rounded,
// the operand of the next (FlashAttention-2), so that scores and weights stay in registers. Softmax and sums are
// floats.
//
// Fragments of mma.m16n8k16, with g = lane / 4 and t = lane % 4. Accumulators: rows g and g + 8, columns 2t and 2t + 1.
// First operand: the same of two neighbouring blocks of eight columns. Second operand: row n = g of the tile that is
// multiplied turned, columns k = 2t and 2t + 1.
#pragma once

#include <type_traits>

#include "millrace/backend/cuda/attention_problem.cuh"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda::mma_attention {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = 16 * kWarps;  // of a block
constexpr int kTile = 64;           // rows of a tile of the other side
constexpr int kMostWidth = 128;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Rows of a head's features, zero behind the last row and the last feature. Eight more elements a row: the sixteen
// bytes of eight rows that are loaded at once lie in different banks.
template <typename T, int kWidth>
struct alignas(16) Tile {
  static constexpr int kStride = kWidth + 8;
  T at[kTile][kStride];

  // The head's width is a multiple of eight, so that vectors are whole.
  __device__ void load(const AttentionProblem& p, const T* from, int64_t from_stride, int first) {
    constexpr int kVectors = kWidth / 8;
    for (int v = static_cast<int>(threadIdx.x); v < kTile * kVectors; v += kThreads) {
      const int row = v / kVectors, d = v % kVectors * 8;
      const bool exists = first + row < p.length && d < p.width;
      const uint4 zero{0, 0, 0, 0};
      *reinterpret_cast<uint4*>(&at[row][d]) =
          exists ? *reinterpret_cast<const uint4*>(from + (first + row) * from_stride + d) : zero;
    }
  }
};

// Four 8 x 8 matrices; the lane names one of their rows.
__device__ inline void load_matrices(const void* row, uint32_t (&to)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_turned_matrices(const void* row, uint32_t (&to)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

template <typename T>
__device__ inline void multiply_add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats rounded into one register, the first in its lower half.
template <typename T>
__device__ inline uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int row_of_warp() { return static_cast<int>(threadIdx.x) / kWarp * 16; }
// Row and column of element e of accumulator block n.
__device__ inline int row_of(int e) { return lane() / 4 + e / 2 * 8; }
__device__ inline int column_of(int n, int e) { return n * 8 + lane() % 4 * 2 + e % 2; }

template <int kColumns>
using Accumulator = float[kColumns / 8][4];
template <int kColumns>
using Operand = uint32_t[kColumns / 16][4];

// The warp's sixteen rows of a tile.
template <typename T, int kWidth>
__device__ inline void load_operand(const Tile<T, kWidth>& tile, Operand<kWidth>& to) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    load_matrices(&tile.at[row_of_warp() + lane() % 16][k * 16 + lane() / 16 * 8], to[k]);
  }
}

template <typename T, int kColumns>
__device__ inline void to_operand(const Accumulator<kColumns>& from, Operand<kColumns>& to) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    to[k][0] = pack<T>(from[2 * k][0], from[2 * k][1]);
    to[k][1] = pack<T>(from[2 * k][2], from[2 * k][3]);
    to[k][2] = pack<T>(from[2 * k + 1][0], from[2 * k + 1][1]);
    to[k][3] = pack<T>(from[2 * k + 1][2], from[2 * k + 1][3]);
  }
}

// c(16 x kColumns) = a(16 x kWidth) times rows [first, first + kColumns) of the tile, turned.
template <typename T, int kWidth, int kColumns>
__device__ inline void multiply_turned(const Operand<kWidth>& a, const Tile<T, kWidth>& tile, int first,
                                       Accumulator<kColumns>& c) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = 0;
  }
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t b[4];
      load_matrices(&tile.at[first + n * 16 + lane() % 8 + lane() / 16 * 8][k * 16 + lane() / 8 % 2 * 8], b);
      multiply_add<T>(a[k], b[0], b[1], c[2 * n]);
      multiply_add<T>(a[k], b[2], b[3], c[2 * n + 1]);
    }
  }
}

// c(16 x kWidth) += a(16 x kColumns) times rows [first, first + kColumns) of the tile.
template <typename T, int kWidth, int kColumns>
__device__ inline void multiply(const Operand<kColumns>& a, const Tile<T, kWidth>& tile, int first,
                                Accumulator<kWidth>& c) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      uint32_t b[4];
      load_turned_matrices(&tile.at[first + k * 16 + lane() % 16][n * 16 + lane() / 16 * 8], b);
      multiply_add<T>(a[k], b[0], b[1], c[2 * n]);
      multiply_add<T>(a[k], b[2], b[3], c[2 * n + 1]);
    }
  }
}

// Rows from `first` on, each half of them times its factor.
template <typename T, int kWidth>
__device__ inline void store(const AttentionProblem& p, int first, const Accumulator<kWidth>& from, float factor,
                             float factor_below, T* to, int64_t to_stride) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + row_of(2 * half);
    const float times = half == 0 ? factor : factor_below;
    if (row >= p.length) continue;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      const uint32_t pair = pack<T>(from[n][2 * half] * times, from[n][2 * half + 1] * times);
      if (n * 8 < p.width) *reinterpret_cast<uint32_t*>(to + row * to_stride + column_of(n, 0)) = pair;
    }
  }
}

// Over the four lanes that share a row.
__device__ inline float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Four bytes more a row: lanes that read below each other do so from different banks.
using Kept = uint8_t[kTile][kTile + 4];
static_assert(kRows == kTile, "a tile of weights is drawn from either side");

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    forward(AttentionProblem p, const StepContext* context, const T* qkv, T* y, float* saved) {
  __shared__ Tile<T, kWidth> keys, values;
  __shared__ Kept kept;
  __shared__ bool has_key[kTile];
  const AttentionPlace at(p, kRows);
  const int first = at.first + row_of_warp();  // query of the warp
  const float scale = p.scale * kLog2E;        // powers of two from here on
  Operand<kWidth> queries;
  keys.load(p, qkv + p.query(at.n, at.h), p.qkv_stride(), at.first);
  __syncthreads();
  load_operand(keys, queries);

  Accumulator<kWidth> sums = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  const int end = p.end_of_keys(at.first + kRows - 1);
  for (int first_key = 0; first_key < end; first_key += kTile) {
    __syncthreads();  // the last tile was read
    keys.load(p, qkv + p.key(at.n, at.h), p.qkv_stride(), first_key);
    values.load(p, qkv + p.value(at.n, at.h), p.qkv_stride(), first_key);
    if (threadIdx.x < kTile) has_key[threadIdx.x] = p.has_key(at.n, first_key + static_cast<int>(threadIdx.x));
    if (p.dropout.on) draw_kept<kTile, kTile>(p, *context, at.n, at.h, at.first, first_key, kept);
    __syncthreads();
    Accumulator<kTile> weights;
    multiply_turned<T, kWidth, kTile>(queries, keys, 0, weights);
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = column_of(n, e);
        const bool seen = has_key[column] && !p.hides(first + row_of(e), first_key + column);
        weights[n][e] = seen ? weights[n][e] * scale : -INFINITY;
        most[e / 2] = fmaxf(most[e / 2], weights[n][e]);
      }
    }
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = largest_of_row(most[half]);
      base[half] = most[half] == -INFINITY ? 0 : most[half];  // no key so far: all exponentials are zero
      const float shrink = exp2f(largest[half] - base[half]);
      largest[half] = most[half];
      total[half] *= shrink;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        sums[n][2 * half] *= shrink;
        sums[n][2 * half + 1] *= shrink;
      }
    }
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float weight = exp2f(weights[n][e] - base[e / 2]);
        total[e / 2] += weight;
        weights[n][e] = weight;
        if (p.dropout.on) weights[n][e] *= p.dropout.factor(kept[row_of_warp() + row_of(e)][column_of(n, e)]);
      }
    }
    Operand<kTile> operand;
    to_operand<T, kTile>(weights, operand);
    multiply<T, kWidth, kTile>(operand, values, 0, sums);
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first + row_of(2 * half);
    const bool sees_none = largest[half] == -INFINITY;
    const float sum = sum_of_row(total[half]);
    inverse[half] = sees_none ? 0 : 1 / sum;
    if (saved && lane() % 4 == 0 && i < p.length) {
      saved[p.saved(at.n, at.h) + i] = sees_none ? 0 : largest[half] * kLn2 + logf(sum);
    }
  }
  store<T, kWidth>(p, first, sums, inverse[0], inverse[1], y + p.output(at.n, at.h), p.features());
}

// Columns whose scores and their gradients are in registers at once.
template <int kWidth>
constexpr int kColumns = kWidth <= 64 ? 32 : 16;

// Of the queries; leaves `along` for the other kernel.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    query_grad(AttentionProblem p, const StepContext* context, AttentionGradient<T> to) {
  constexpr int kPart = kColumns<kWidth>;
  __shared__ Tile<T, kWidth> keys, values;
  __shared__ Kept kept;
  __shared__ bool has_key[kTile];
  const AttentionPlace at(p, kRows);
  const int first = at.first + row_of_warp();
  const float scale = p.scale * kLog2E;
  Operand<kWidth> queries, dy;
  keys.load(p, to.qkv + p.query(at.n, at.h), p.qkv_stride(), at.first);
  values.load(p, to.dy + p.output(at.n, at.h), p.features(), at.first);
  __syncthreads();
  load_operand(keys, queries);
  load_operand(values, dy);

  float along[2], saved[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first + row_of(2 * half);
    const bool exists = i < p.length;
    const T* y = to.y + p.output(at.n, at.h) + int64_t{i} * p.features();
    float sum = 0;
    for (int d = lane() % 4; exists && d < p.width; d += 4) {
      sum += to_float(values.at[row_of_warp() + row_of(2 * half)][d]) * to_float(y[d]);
    }
    along[half] = sum_of_row(sum);
    saved[half] = exists ? to.saved[p.saved(at.n, at.h) + i] * kLog2E : 0;
    if (exists && lane() % 4 == 0) to.along[p.saved(at.n, at.h) + i] = along[half];
  }

  Accumulator<kWidth> sums = {};
  const int end = p.end_of_keys(at.first + kRows - 1);
  for (int first_key = 0; first_key < end; first_key += kTile) {
    __syncthreads();
    keys.load(p, to.qkv + p.key(at.n, at.h), p.qkv_stride(), first_key);
    values.load(p, to.qkv + p.value(at.n, at.h), p.qkv_stride(), first_key);
    if (threadIdx.x < kTile) has_key[threadIdx.x] = p.has_key(at.n, first_key + static_cast<int>(threadIdx.x));
    if (p.dropout.on) draw_kept<kTile, kTile>(p, *context, at.n, at.h, at.first, first_key, kept);
    __syncthreads();
#pragma unroll 1
    for (int part = 0; part < kTile; part += kPart) {
      Accumulator<kPart> scores, dscores;
      multiply_turned<T, kWidth, kPart>(queries, keys, part, scores);
      multiply_turned<T, kWidth, kPart>(dy, values, part, dscores);
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = part + column_of(n, e);
          const bool seen = has_key[column] && !p.hides(first + row_of(e), first_key + column);
          const float weight = seen ? exp2f(scores[n][e] * scale - saved[e / 2]) : 0;
          float dweight = dscores[n][e];
          if (p.dropout.on) dweight *= p.dropout.factor(kept[row_of_warp() + row_of(e)][column]);
          dscores[n][e] = weight * (dweight - along[e / 2]);
        }
      }
      Operand<kPart> operand;
      to_operand<T, kPart>(dscores, operand);
      multiply<T, kWidth, kPart>(operand, keys, part, sums);
    }
  }
  store<T, kWidth>(p, first, sums, p.scale, p.scale, to.dqkv + p.query(at.n, at.h), p.qkv_stride());
}

// Of the keys and values: the block's rows are keys, the tiles queries.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    key_value_grad(AttentionProblem p, const StepContext* context, AttentionGradient<T> to) {
  constexpr int kPart = kColumns<kWidth>;
  __shared__ Tile<T, kWidth> queries, dy;
  __shared__ Kept kept;
  __shared__ float saved[kTile], along[kTile];
  const AttentionPlace at(p, kRows);
  const int first = at.first + row_of_warp();  // key of the warp
  const float scale = p.scale * kLog2E;
  Operand<kWidth> keys, values;
  queries.load(p, to.qkv + p.key(at.n, at.h), p.qkv_stride(), at.first);
  dy.load(p, to.qkv + p.value(at.n, at.h), p.qkv_stride(), at.first);
  __syncthreads();
  load_operand(queries, keys);
  load_operand(dy, values);
  const bool has_key[2] = {p.has_key(at.n, first + row_of(0)), p.has_key(at.n, first + row_of(2))};

  Accumulator<kWidth> dkeys = {}, dvalues = {};
  // Queries before the first key do not see any of them.
  for (int first_query = p.causal ? at.first : 0; first_query < p.length; first_query += kTile) {
    __syncthreads();
    queries.load(p, to.qkv + p.query(at.n, at.h), p.qkv_stride(), first_query);
    dy.load(p, to.dy + p.output(at.n, at.h), p.features(), first_query);
    if (threadIdx.x < kTile) {
      const int i = first_query + static_cast<int>(threadIdx.x);
      saved[threadIdx.x] = i < p.length ? to.saved[p.saved(at.n, at.h) + i] * kLog2E : 0;
      along[threadIdx.x] = i < p.length ? to.along[p.saved(at.n, at.h) + i] : 0;
    }
    if (p.dropout.on) draw_kept<kTile, kTile>(p, *context, at.n, at.h, first_query, at.first, kept);
    __syncthreads();
#pragma unroll 1
    for (int part = 0; part < kTile; part += kPart) {
      Accumulator<kPart> weights, dscores;
      multiply_turned<T, kWidth, kPart>(keys, queries, part, weights);
      multiply_turned<T, kWidth, kPart>(values, dy, part, dscores);
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = part + column_of(n, e), i = first_query + column;
          const bool seen = i < p.length && has_key[e / 2] && !p.hides(i, first + row_of(e));
          const float weight = seen ? exp2f(weights[n][e] * scale - saved[column]) : 0;
          float factor = 1;
          if (p.dropout.on) factor = p.dropout.factor(kept[column][row_of_warp() + row_of(e)]);
          weights[n][e] = weight * factor;
          dscores[n][e] = weight * (dscores[n][e] * factor - along[column]);
        }
      }
      Operand<kPart> operand;
      to_operand<T, kPart>(weights, operand);
      multiply<T, kWidth, kPart>(operand, dy, part, dvalues);
      to_operand<T, kPart>(dscores, operand);
      multiply<T, kWidth, kPart>(operand, queries, part, dkeys);
    }
  }
  store<T, kWidth>(p, first, dkeys, p.scale, p.scale, to.dqkv + p.key(at.n, at.h), p.qkv_stride());
  store<T, kWidth>(p, first, dvalues, 1, 1, to.dqkv + p.value(at.n, at.h), p.qkv_stride());
}

}  // namespace millrace::backend::cuda::mma_attention
