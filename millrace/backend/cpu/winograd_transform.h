// Winograd's transforms for tiles of 6 x 6 (Lavin and Gray 2015; points 0, 1, -1, 2, -2 and infinity). A tile yields
// m outputs of a filter of r taps with m + r = 7 along each axis, so the same input transform serves 3 x 3 filters
// (m = 4) and 5 x 5 filters (m = 2), and with the roles of filter and output exchanged their weight gradients.
// Each function works on whole vectors of channels.
#pragma once

#include <cstdint>

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu::winograd {

constexpr int kTile = 6;
constexpr int kPoints = kTile * kTile;

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

// G g, for filters of kTaps values.
template <int kTaps>
inline void filter_1d(const Lanes (&g)[kTaps], Lanes (&t)[kTile]) {
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
  t[4] = (even2 - odd2) * (1.0f / 24);
  t[5] = g[kTaps - 1];
}

// A^T s, for kOut outputs.
template <int kOut>
inline void output_1d(const Lanes (&s)[kTile], Lanes (&y)[kOut]) {
  const Lanes even = s[1] + s[2], odd = s[1] - s[2], even2 = s[3] + s[4], odd2 = s[3] - s[4];
#pragma GCC unroll 8
  for (int i = 0; i < kOut; ++i) y[i] = (i % 2 ? odd : even) + static_cast<float>(1 << i) * (i % 2 ? odd2 : even2);
  y[0] += s[0];
  y[kOut - 1] += s[5];
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

// The same along both axes of a square: `transform` takes kIn values to kOut, `store` gets each result. All loops are
// written out: left as loops, every value would go through memory once more.
template <int kIn, int kOut, typename Transform, typename Store>
[[gnu::always_inline]] inline void both_axes(const Transform& transform, ConstSquare in, const Store& store) {
  Lanes half[kOut][kIn];
#pragma GCC unroll 8
  for (int column = 0; column < kIn; ++column) {
    Lanes from[kIn], to[kOut];
#pragma GCC unroll 8
    for (int row = 0; row < kIn; ++row) from[row] = in.at(row, column);
    transform(from, to);
#pragma GCC unroll 8
    for (int row = 0; row < kOut; ++row) half[row][column] = to[row];
  }
#pragma GCC unroll 8
  for (int row = 0; row < kOut; ++row) {
    Lanes to[kOut];
    transform(half[row], to);
#pragma GCC unroll 8
    for (int column = 0; column < kOut; ++column) store(row, column, to[column]);
  }
}

inline void input_2d(ConstSquare d, Square t) {
  both_axes<kTile, kTile>([](const auto& from, auto& to) { input_1d(from, to); }, d,
                          [&](int row, int column, Lanes value) { t.at(row, column) = value; });
}
template <int kTaps>
inline void filter_2d(ConstSquare g, Square t) {
  both_axes<kTaps, kTile>([](const auto& from, auto& to) { filter_1d<kTaps>(from, to); }, g,
                          [&](int row, int column, Lanes value) { t.at(row, column) = value; });
}
template <int kOut, typename Store>
inline void output_2d(ConstSquare s, const Store& store) {
  both_axes<kTile, kOut>([](const auto& from, auto& to) { output_1d<kOut>(from, to); }, s, store);
}

}  // namespace millrace::backend::cpu::winograd
