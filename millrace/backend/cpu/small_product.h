// C[rows][columns] (+)= sum over k of a(row, k) * B[k][columns], for operands that lie in the cache: the inner loop of
// Winograd's convolution. Rows come in groups of kRows, columns in vectors.
#pragma once

#include <cstdint>

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu {

// Accumulators, one row of B and a broadcast must fit the registers: 32 with AVX-512, 16 without.
constexpr int kProductRows = kBlock == 16 ? 8 : 4;
constexpr int kProductVectors = kBlock == 16 ? 3 : 2;

struct ProductShape {
  int64_t rows;     // a multiple of kProductRows
  int64_t vectors;  // columns / kBlock
  int64_t depth;
  int64_t a_row, a_depth;  // strides of a(row, k), in floats
  int64_t b_depth, c_row;  // strides of B and C, in vectors
};

template <int kVectors, bool kAccumulate>
inline void product_tile(const ProductShape& shape, const float* a, const Lanes* b, Lanes* c) {
  Lanes sum[kProductRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kProductRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j) sum[i][j] = kAccumulate ? c[i * shape.c_row + j] : Lanes{};
  }
  for (int64_t k = 0; k < shape.depth; ++k) {
    Lanes row[kVectors];
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j) row[j] = b[j];
#pragma GCC unroll 8
    for (int i = 0; i < kProductRows; ++i) {
      const Lanes factor = splat(a[i * shape.a_row]);
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; ++j) sum[i][j] += factor * row[j];
    }
    a += shape.a_depth;
    b += shape.b_depth;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kProductRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j) c[i * shape.c_row + j] = sum[i][j];
  }
}

// Width of the next panel: as wide as registers allow, but four are two and two: one alone would wait for loads.
constexpr int panel_vectors(int64_t left) {
  if (left == 1) return 1;
  return kProductVectors == 3 && left != 2 && left != 4 ? 3 : 2;
}

// One panel of B at a time, so that it stays in the nearest cache for all rows.
template <bool kAccumulate>
inline void small_product(const ProductShape& shape, const float* a, const Lanes* b, Lanes* c) {
  int64_t width = 0;
  for (int64_t j = 0; j < shape.vectors; j += width) {
    width = panel_vectors(shape.vectors - j);
    const auto tile = width == 3   ? product_tile<3, kAccumulate>
                      : width == 2 ? product_tile<2, kAccumulate>
                                   : product_tile<1, kAccumulate>;
    for (int64_t i = 0; i < shape.rows; i += kProductRows) {
      tile(shape, a + i * shape.a_row, b + j, c + i * shape.c_row + j);
    }
  }
}

}  // namespace millrace::backend::cpu
