// Winograd's transforms for tiles of 6 x 6 (Lavin and Gray 2015; points 0, 1, -1, 2, -2 and infinity). A tile yields
// m outputs of a filter of r taps with m + r = 7 along each axis, so the same input transform serves 3 x 3 filters
// (m = 4) and 5 x 5 filters (m = 2), and with the roles of filter and output exchanged their weight gradients.
//
// Along an axis a tile may also be short: it leaves out the point -2 and yields one output less, so that 14 outputs are
// 4 + 4 + 3 + 3 with 22 points instead of 4 tiles with 24. What the missing point changes in the values of filters at
// the others, a factor of p + 2 at point p, is made up for by the input transform: filters and sums are the same for
// short tiles and long ones.
// Each function works on whole vectors of channels. kCount: points of the axis, 6 or 5.
#pragma once

#include <cstdint>

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu::winograd {

constexpr int kTile = 6;
constexpr int kPoints = kTile * kTile;
constexpr int kShortTile = kTile - 1;
constexpr int kLeftOut = 4;  // the point that short tiles do not have

// Where the values of an axis lie among those of a long one.
template <int kCount>
constexpr int place_of(int value) {
  return kCount == kTile || value < kLeftOut ? value : value + 1;
}

// B^T d
inline void input_1d(const Lanes (&d)[kTile], Lanes (&t)[kTile]) {
  const Lanes a = d[4] - 4 * d[2], b = d[3] - 4 * d[1];
  const Lanes c = d[4] - d[2], e = d[3] - d[1];
  t[0] = 4 * d[0] + (d[4] - 5 * d[2]);
  t[1] = a + b;
  t[2] = a - b;
  t[3] = c + 2 * e;
  t[4] = c - 2 * e;
  t[5] = 4 * d[1] + (d[5] - 5 * d[3]);
}
inline void input_1d(const Lanes (&d)[kShortTile], Lanes (&t)[kShortTile]) {
  t[0] = 4 * (d[0] - d[2]) - 2 * (d[1] - d[3]);
  t[1] = 3 * (d[3] - d[2]) - 6 * d[1];
  t[2] = d[3] - 3 * d[2] + 2 * d[1];
  t[3] = 4 * (d[3] - d[1]);
  t[4] = d[4] - d[2] + 2 * (d[1] - d[3]);
}

// G g, for filters of kTaps values.
template <int kTaps, int kCount>
inline void filter_1d(const Lanes (&g)[kTaps], Lanes (&t)[kCount]) {
  Lanes even{}, odd{}, even2{}, odd2{};  // of the polynomial g at 1 and at 2
#pragma GCC unroll 8
  for (int k = 0; k < kTaps; ++k) {
    (k % 2 ? odd : even) += g[k];
    (k % 2 ? odd2 : even2) += static_cast<float>(1 << k) * g[k];
  }
  t[0] = g[0] * (1.0f / 4);
  t[1] = (even + odd) * (-1.0f / 6);
  t[2] = (even - odd) * (-1.0f / 6);
  t[3] = (even2 + odd2) * (1.0f / 24);
  if constexpr (kCount == kTile) t[4] = (even2 - odd2) * (1.0f / 24);
  t[kCount - 1] = g[kTaps - 1];
}

// A^T s, for kOut outputs.
template <int kOut, int kCount>
inline void output_1d(const Lanes (&s)[kCount], Lanes (&y)[kOut]) {
  const Lanes even = s[1] + s[2], odd = s[1] - s[2];
  const Lanes at_minus_2 = kCount == kTile ? s[4] : Lanes{}, even2 = s[3] + at_minus_2, odd2 = s[3] - at_minus_2;
#pragma GCC unroll 8
  for (int i = 0; i < kOut; ++i) y[i] = (i % 2 ? odd : even) + static_cast<float>(1 << i) * (i % 2 ? odd2 : even2);
  y[0] += s[0];
  y[kOut - 1] += s[kCount - 1];
}

// Where the values of a square lie: value (row, column) at data[row * row_stride + column * column_stride].
struct Square {
  Lanes* data;
  int64_t row_stride, column_stride;
  Lanes& at(int row, int column) const { return data[row * row_stride + column * column_stride]; }
};
struct ConstSquare {
  const Lanes* data;
  int64_t row_stride, column_stride;
  const Lanes& at(int row, int column) const { return data[row * row_stride + column * column_stride]; }
};

// A transform along both axes, `down` and then `across`; `store` gets each result. All loops are written out: left as
// loops, every value would go through memory once more.
template <int kInRows, int kInColumns, int kOutRows, int kOutColumns, typename Down, typename Across, typename Load,
          typename Store>
[[gnu::always_inline]] inline void both_axes(const Down& down, const Across& across, const Load& load,
                                             const Store& store) {
  Lanes half[kOutRows][kInColumns];
#pragma GCC unroll 8
  for (int column = 0; column < kInColumns; ++column) {
    Lanes from[kInRows], to[kOutRows];
#pragma GCC unroll 8
    for (int row = 0; row < kInRows; ++row) from[row] = load(row, column);
    down(from, to);
#pragma GCC unroll 8
    for (int row = 0; row < kOutRows; ++row) half[row][column] = to[row];
  }
#pragma GCC unroll 8
  for (int row = 0; row < kOutRows; ++row) {
    Lanes to[kOutColumns];
    across(half[row], to);
#pragma GCC unroll 8
    for (int column = 0; column < kOutColumns; ++column) store(row, column, to[column]);
  }
}

// kRows, kColumns: points along each axis.
template <int kRows, int kColumns>
inline void input_2d(ConstSquare d, Square t) {
  const auto transform = [](const auto& from, auto& to) { input_1d(from, to); };
  both_axes<kRows, kColumns, kRows, kColumns>(
      transform, transform, [&](int row, int column) { return d.at(row, column); },
      [&](int row, int column, Lanes value) { t.at(place_of<kRows>(row), place_of<kColumns>(column)) = value; });
}
template <int kTapRows, int kTapColumns, int kRows, int kColumns>
inline void filter_2d(ConstSquare g, Square t) {
  const auto transform = [](const auto& from, auto& to) { filter_1d(from, to); };
  both_axes<kTapRows, kTapColumns, kRows, kColumns>(
      transform, transform, [&](int row, int column) { return g.at(row, column); },
      [&](int row, int column, Lanes value) { t.at(place_of<kRows>(row), place_of<kColumns>(column)) = value; });
}
template <int kOutRows, int kOutColumns, int kRows, int kColumns, typename Store>
inline void output_2d(ConstSquare s, const Store& store) {
  const auto transform = [](const auto& from, auto& to) { output_1d(from, to); };
  both_axes<kRows, kColumns, kOutRows, kOutColumns>(
      transform, transform, [&](int row, int column) { return s.at(place_of<kRows>(row), place_of<kColumns>(column)); },
      store);
}

}  // namespace millrace::backend::cpu::winograd
