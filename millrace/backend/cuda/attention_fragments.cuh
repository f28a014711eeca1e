// What attention on tensor cores is built of: tiles in shared memory, and a warp's rows in the fragments of
// mma.m16n8k16.
//
// With g = lane / 4 and t = lane % 4. Accumulators: rows g and g + 8, columns 2t and 2t + 1. First operand: the same of
// two neighbouring blocks of eight columns, so that accumulators of one product are, rounded, the operand of the next
// (FlashAttention-2). Second operand: row n = g of the tile that is multiplied turned, columns k = 2t and 2t + 1.
#pragma once

#include <type_traits>

#include "millrace/backend/cuda/attention_dropout.cuh"
#include "millrace/backend/cuda/attention_problem.cuh"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda::mma_attention {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = 16 * kWarps;  // of a block: sixteen of each warp
constexpr int kTile = 64;           // rows of a tile of the other side
constexpr int kMostWidth = 128;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int row_of_warp() { return static_cast<int>(threadIdx.x) / kWarp * 16; }
// Row and column of element e of accumulator block n.
__device__ inline int row_of(int e) { return lane() / 4 + e / 2 * 8; }
__device__ inline int column_of(int n, int e) { return n * 8 + lane() % 4 * 2 + e % 2; }

// To shared memory without passing through registers; zeros where there is nothing to copy. What was asked for before
// is there after arrived() and a barrier.
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, bool exists) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(address), "l"(from), "r"(bytes), "n"(kBytes)
                 : "memory");
  }
}
__device__ inline void arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Rows of a head's features, zero behind the last row and the last feature. Eight more elements a row: the sixteen
// bytes of eight rows that are loaded at once lie in different banks.
template <typename T, int kWidth>
struct alignas(16) Tile {
  static constexpr int kStride = kWidth + 8;
  T at[kTile][kStride];

  // The head's width is a multiple of eight, so that vectors are whole.
  __device__ void load(const AttentionProblem& p, const T* from, int64_t from_stride, int first) {
    constexpr int kVectors = kWidth / 8;
    static_assert(kTile * kVectors % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kTile * kVectors / kThreads; ++i) {
      const int v = static_cast<int>(threadIdx.x) + i * kThreads, row = v / kVectors, d = v % kVectors * 8;
      const bool exists = first + row < p.length && d < p.width;
      copy_async<16>(&at[row][d], exists ? from + (first + row) * from_stride + d : from, exists);
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

// Two floats rounded into one register, the first in its lower half; and back.
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
template <typename T>
__device__ inline float2 unpack(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }
}

// Two to the power of x; tiny results are zero.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int kColumns>
using Accumulator = float[kColumns / 8][4];
template <int kColumns>
using Operand = uint32_t[kColumns / 16][4];

// The warp's sixteen rows of a tile.
template <typename T, int kWidth>
__device__ inline void load_operand(const Tile<T, kWidth>& tile, Operand<kWidth>& to) {
  static_assert(kRows == kTile);
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

// Sixteens of columns, of which only the first `count` are worth the work.
template <int kGroups, typename Body>
__device__ inline void each_group(int count, const Body& body) {
  if (count == kGroups) {  // without branches, so that one's loads hide behind another's products
#pragma unroll
    for (int n = 0; n < kGroups; ++n) body(n);
  } else {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (n < count) body(n);
    }
  }
}

// c(16 x kColumns) = a(16 x kWidth) times rows [first, first + kColumns) of the tile, turned; `groups` sixteens of
// them, zero behind.
template <typename T, int kWidth, int kColumns>
__device__ inline void multiply_turned(const Operand<kWidth>& a, const Tile<T, kWidth>& tile, int first, int groups,
                                       Accumulator<kColumns>& c) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = 0;
  }
  each_group<kColumns / 16>(groups, [&](int n) {
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      uint32_t b[4];
      load_matrices(&tile.at[first + n * 16 + lane() % 8 + lane() / 16 * 8][k * 16 + lane() / 8 % 2 * 8], b);
      multiply_add<T>(a[k], b[0], b[1], c[2 * n]);
      multiply_add<T>(a[k], b[2], b[3], c[2 * n + 1]);
    }
  });
}

// c(16 x kWidth) += a(16 x kColumns) times rows [first, first + kColumns) of the tile, `groups` sixteens of them.
template <typename T, int kWidth, int kColumns>
__device__ inline void multiply(const Operand<kColumns>& a, const Tile<T, kWidth>& tile, int first, int groups,
                                Accumulator<kWidth>& c) {
  each_group<kColumns / 16>(groups, [&](int k) {
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      uint32_t b[4];
      load_turned_matrices(&tile.at[first + k * 16 + lane() % 16][n * 16 + lane() / 16 * 8], b);
      multiply_add<T>(a[k], b[0], b[1], c[2 * n]);
      multiply_add<T>(a[k], b[2], b[3], c[2 * n + 1]);
    }
  });
}

// Sixteen rows from `first` on; factor(half) is that of rows g and g + 8.
template <typename T, int kWidth, typename Factor>
__device__ inline void store_rows(const AttentionProblem& p, int first, const Accumulator<kWidth>& from, T* to,
                                  int64_t to_stride, const Factor& factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + row_of(2 * half);
    const float times = factor(half);
    if (row >= p.length) continue;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      // A selection, not a product: of what is not seen even infinity is nothing.
      const uint32_t pair = times == 0 ? 0u : pack<T>(from[n][2 * half] * times, from[n][2 * half + 1] * times);
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

// One bit for each column of a tile. A lane asks for those of its own columns.
struct Bits {
  uint32_t low, high;

  __device__ static Bits all() { return {~0u, ~0u}; }
  // Columns up to `last`, which may lie before the first or behind the end.
  __device__ static Bits up_to(int last) {
    const uint64_t bits = last >= 63 ? ~uint64_t{0} : last < 0 ? 0 : (uint64_t{2} << last) - 1;
    return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
  }
  __device__ static Bits from(int first) {
    const Bits before = up_to(first - 1);
    return {~before.low, ~before.high};
  }
  // Of a row of words.
  __device__ static Bits read(const uint32_t* words) {
    const uint2 two = *reinterpret_cast<const uint2*>(words);
    return {two.x, two.y};
  }

  __device__ Bits operator&(const Bits& other) const { return {low & other.low, high & other.high}; }
  __device__ bool none() const { return (low | high) == 0; }
  __device__ bool full() const { return (low & high) == ~0u; }
  // Moved so that column_of(n, e) is at a place that is the same for all lanes.
  __device__ Bits of_lane() const { return {low >> (lane() % 4 * 2), high >> (lane() % 4 * 2)}; }
  __device__ bool at(int n, int e) const { return (n < 4 ? low : high) >> (n % 4 * 8 + e % 2) & 1; }
};

// Keys from `first_key` on that there are; the whole warp asks.
__device__ inline Bits keys_there(const AttentionProblem& p, int n, int first_key) {
  if (!p.tokens) return Bits::up_to(p.length - 1 - first_key);
  const bool low = p.has_key(n, first_key + lane()), high = p.has_key(n, first_key + kWarp + lane());
  return {__ballot_sync(~0u, low), __ballot_sync(~0u, high)};
}

// Weights of a row with the tile's columns that dropout keeps. A row behind the last gets those of the last.
__device__ inline Bits kept_of_row(const AttentionProblem& p, const AttentionPlace& at, const uint32_t* kept, int row,
                                   int first_column) {
  const int64_t words = (p.saved(at.n, at.h) + min(row, p.length - 1)) * KeptWeights::words_of_row(p);
  return Bits::read(kept + words + first_column / 32).of_lane();
}

}  // namespace millrace::backend::cuda::mma_attention
