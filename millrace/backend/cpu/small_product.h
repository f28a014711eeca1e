// C[rows][columns] (+)= sum over k of a(row, k) * B[k][columns], for operands that lie in the cache: the inner loop of
// Winograd's convolution and of attention. Rows come in pairs, columns in vectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu {

// The largest tile of C: its sums, one row of B and a broadcast must fit the registers, 32 with AVX-512, 16 without.
constexpr int kProductRows = 6;
constexpr int kProductVectors = kBlock == 16 ? 4 : 2;

constexpr int64_t even_rows(int64_t rows) { return (rows + 1) / 2 * 2; }

struct ProductShape {
  int64_t rows;     // an even number
  int64_t vectors;  // columns / kBlock
  int64_t depth;
  int64_t a_row, a_depth;    // strides of a(row, k), in floats
  int64_t b_depth, b_panel;  // strides of B from k to k and from kProductVectors columns to the next, in vectors
  int64_t c_row;             // stride of C, in vectors
};

// B with each panel of kProductVectors columns in one piece, as a tile reads it: what comes from a cache further away
// is then read in the order in which it lies.
struct PackedPanels {
  int64_t vectors, depth;

  int64_t width() const { return std::min<int64_t>(vectors, kProductVectors); }
  int64_t panels() const { return (vectors + kProductVectors - 1) / kProductVectors; }
  int64_t panel_stride() const { return width() * depth; }
  int64_t size() const { return panels() * panel_stride(); }
  int64_t place(int64_t k, int64_t column) const {
    return column / kProductVectors * panel_stride() + k * width() + column % kProductVectors;
  }
};

template <int kRows, int kVectors, bool kAccumulate>
inline void product_tile(const ProductShape& shape, const float* a, const Lanes* b, Lanes* c) {
  Lanes sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = kAccumulate ? c[i * shape.c_row + j] : Lanes{};
  }
  for (int64_t k = 0; k < shape.depth; ++k) {
    Lanes row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = b[j];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Lanes factor = splat(a[i * shape.a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] += factor * row[j];
    }
    a += shape.a_depth;
    b += shape.b_depth;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) c[i * shape.c_row + j] = sum[i][j];
  }
}

template <int kVectors, bool kAccumulate>
void product_panel(const ProductShape& shape, const float* a, const Lanes* b, Lanes* c) {
  int64_t i = 0;
  for (; i + kProductRows <= shape.rows; i += kProductRows) {
    product_tile<kProductRows, kVectors, kAccumulate>(shape, a + i * shape.a_row, b, c + i * shape.c_row);
  }
  const int64_t left = shape.rows - i;
  if (left == 4) product_tile<4, kVectors, kAccumulate>(shape, a + i * shape.a_row, b, c + i * shape.c_row);
  if (left == 2) product_tile<2, kVectors, kAccumulate>(shape, a + i * shape.a_row, b, c + i * shape.c_row);
}

// One panel of B at a time, so that it stays in the nearest cache for all rows.
template <bool kAccumulate>
inline void small_product(const ProductShape& shape, const float* a, const Lanes* b, Lanes* c) {
  for (int64_t j = 0; j < shape.vectors; j += kProductVectors, b += shape.b_panel) {
    switch (std::min<int64_t>(shape.vectors - j, kProductVectors)) {
      case 1: product_panel<1, kAccumulate>(shape, a, b, c + j); break;
      case 2: product_panel<2, kAccumulate>(shape, a, b, c + j); break;
      case 3: product_panel<3, kAccumulate>(shape, a, b, c + j); break;
      default: product_panel<kProductVectors, kAccumulate>(shape, a, b, c + j);
    }
  }
}

}  // namespace millrace::backend::cpu
