// A tile of a product whose operands lie in blocked layouts: sums over k of a(row, k) * B[k][column], where rows of a
// lie apart, columns of B are vectors in streams of their own. The inner loop of matrix_conv.h.
#pragma once

#include <cstdint>

#include "millrace/backend/cpu/past_caches.h"
#include "millrace/backend/cpu/small_product.h"

namespace millrace::backend::cpu::matrix_conv {

// Where a result lies: row and column at column(column)[row], in vectors.
struct Place {
  Lanes* data = nullptr;
  int64_t column_stride = 0;
  Place from_row(int64_t row) const { return {data ? data + row : nullptr, column_stride}; }
  Lanes* column(int64_t j) const { return data + j * column_stride; }
};

// The compiler would give each of a tile's places an address of its own, and keep them all: of a short product a tenth
// of the time. It is not told where a column's address comes from.
[[gnu::always_inline]] inline Lanes* opaque(Lanes* column) {
  asm("" : "+r"(column));
  return column;
}

enum class Storing { Plain, Adding, PastCaches };

// What sums begin with (nothing: zero), where they go and how.
struct Result {
  Place begin, end;
  Storing storing = Storing::Plain;
  Result from_row(int64_t row) const { return {begin.from_row(row), end.from_row(row), storing}; }
};

template <int kRows, int kColumns>
class Sums {
 public:
  [[gnu::always_inline]] explicit Sums(const Result& result) {
    // What is written at the end may be far away: it is asked for now.
    if (result.storing != Storing::PastCaches) {
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) {
        const Lanes* to = opaque(result.end.column(j));
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) __builtin_prefetch(to + i, 1);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      const Lanes* from = result.begin.data ? opaque(result.begin.column(j)) : nullptr;
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) sum_[i][j] = from ? from[i] : Lanes{};
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
    switch (result.storing) {
      case Storing::Plain: return store_by(result.end, [](Lanes& to, Lanes sum) { to = sum; });
      case Storing::Adding: return store_by(result.end, [](Lanes& to, Lanes sum) { to += sum; });
      case Storing::PastCaches: return store_by(result.end, [](Lanes& to, Lanes sum) { store_past_caches(to, sum); });
    }
  }

 private:
  template <typename Store>
  [[gnu::always_inline]] void store_by(const Place& end, const Store& store_one) const {
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      Lanes* to = opaque(end.column(j));
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) store_one(to[i], sum_[i][j]);
    }
  }

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
