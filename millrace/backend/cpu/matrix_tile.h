// A tile of a product whose operands lie in blocked layouts: sums over k of a(row, k) * B[k][column], where rows of a
// lie apart, columns of B are vectors in streams of their own. The inner loop of matrix_conv.h.
#pragma once

#include <cstdint>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/small_product.h"

namespace millrace::backend::cpu::matrix_conv {

// Where a result lies: row and column at data[row * row_stride + column * column_stride], in vectors.
struct Place {
  Lanes* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
  Place from_row(int64_t row) const { return {data + (data ? row * row_stride : 0), row_stride, column_stride}; }
  Lanes& at(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }
};

// What sums begin with (nothing: zero), where they go, and whether they are added to what is there.
struct Result {
  Place begin, end;
  bool add = false;
  Result from_row(int64_t row) const { return {begin.from_row(row), end.from_row(row), add}; }
};

template <int kRows, int kColumns>
class Sums {
 public:
  [[gnu::always_inline]] explicit Sums(const Result& result) {
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) {
        // What is written at the end may be far away: it is asked for now.
        __builtin_prefetch(&result.end.at(i, j), 1);
        sum_[i][j] = result.begin.data ? result.begin.at(i, j) : Lanes{};
      }
    }
  }

  // kRowStride and kStep: from one row of a and from one k to the next, in floats. Returns B behind what it read.
  template <int kRowStride, int kStep>
  [[gnu::always_inline]] const Lanes* add_products(const float* a, const Lanes* b, int64_t b_column, int64_t depth) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) {
      Lanes row[kColumns];
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) row[j] = b[j * b_column + k];
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const Lanes factor = splat(a[i * kRowStride + k * kStep]);
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) sum_[i][j] += factor * row[j];
      }
    }
    return b + depth;
  }

  [[gnu::always_inline]] void store(const Result& result) const {
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) {
        Lanes& to = result.end.at(i, j);
        to = result.add ? to + sum_[i][j] : sum_[i][j];
      }
    }
  }

 private:
  Lanes sum_[kRows][kColumns];
};

// Calls run.operator()<kRows>(first row) for tiles that cover `rows` rows.
template <typename Run>
[[gnu::always_inline]] inline void in_tiles(int64_t rows, const Run& run) {
  int64_t i = 0;
  for (; i + kProductRows <= rows; i += kProductRows) run.template operator()<kProductRows>(i);
  if (rows - i >= 4) {
    run.template operator()<4>(i);
    i += 4;
  }
  if (rows - i >= 2) {
    run.template operator()<2>(i);
    i += 2;
  }
  if (rows - i >= 1) run.template operator()<1>(i);
}

}  // namespace millrace::backend::cpu::matrix_conv
