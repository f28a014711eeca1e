// Winograd's transforms for 3 x 3 filters of stride 2. Along an axis such a convolution is two of stride 1: one over
// every other pixel with the first and the last tap (phase A), one over the pixels between them with the tap in the
// middle (phase B). Their outputs meet in the same points, 0, 1, -1, 2 and infinity: five yield four outputs of two
// taps. A single tap is two of which the last is zero, and has no value at infinity. Of 144 multiplications 81 are
// left.
//
// As with stride 1 (winograd_transform.h) a tile may be short along an axis: without the point 2, with one output less,
// and with the factor p - 2 that filters then lack at point p in the transform of its input.
//
// kShort: whether a tile is short along this axis; kBetween: whether this is phase B.
#pragma once

#include <array>

#include "millrace/backend/cpu/winograd_transform.h"

namespace millrace::backend::cpu::winograd::phases {

constexpr int kAxisPoints = 5;
constexpr int kInfinity = 4, kOptional = 3;  // short tiles do not have the latter
constexpr int kOutputs = 4;                  // of a long tile

template <bool kShort, bool kBetween>
constexpr int kValues = kAxisPoints - kShort - kBetween;

// Which point a value of an axis belongs to.
template <bool kShort>
constexpr int point_of(int value) {
  return kShort && value == kOptional ? kInfinity : value;
}

// B^T d
template <bool kShort, bool kBetween>
inline void input_1d(const Lanes (&d)[kValues<kShort, kBetween>], Lanes (&t)[kValues<kShort, kBetween>]) {
  if constexpr (kShort) {
    t[0] = 2 * (d[0] - d[2]);
    t[1] = -(d[1] + d[2]);
    t[2] = 3 * (d[1] - d[2]);
    if constexpr (!kBetween) t[3] = d[3] - d[1];
  } else {
    const Lanes difference = d[3] - d[1];
    t[0] = difference + 2 * (d[0] - d[2]);
    t[1] = difference - (d[1] + d[2]);
    t[2] = difference + 3 * (d[1] - d[2]);
    t[3] = difference;
    if constexpr (!kBetween) t[4] = (d[4] - d[2]) - 2 * difference;
  }
}

// G g, for filters of kTaps values: two in phase A, one in phase B, or with the roles of filter and output exchanged
// the gradients of a tile.
template <bool kShort, bool kBetween, int kTaps>
inline void filter_1d(const Lanes (&g)[kTaps], Lanes (&t)[kValues<kShort, kBetween>]) {
  Lanes even{}, odd{}, at_2{};
#pragma GCC unroll 8
  for (int k = 0; k < kTaps; ++k) {
    (k % 2 ? odd : even) += g[k];
    at_2 += static_cast<float>(1 << k) * g[k];
  }
  t[0] = g[0] * (1.0f / 2);
  t[1] = (even + odd) * (-1.0f / 2);
  t[2] = (even - odd) * (-1.0f / 6);
  if constexpr (!kShort) t[3] = at_2 * (1.0f / 6);
  if constexpr (!kBetween) t[kValues<kShort, kBetween> - 1] = g[kTaps - 1];
}

// A^T s, for kOut outputs.
template <bool kShort, bool kBetween, int kOut>
inline void output_1d(const Lanes (&s)[kValues<kShort, kBetween>], Lanes (&y)[kOut]) {
  const Lanes even = s[1] + s[2], odd = s[1] - s[2], at_2 = kShort ? Lanes{} : s[kOptional];
#pragma GCC unroll 8
  for (int i = 0; i < kOut; ++i) y[i] = (i % 2 ? odd : even) + static_cast<float>(1 << i) * at_2;
  y[0] += s[0];
  if constexpr (!kBetween) y[kOut - 1] += s[kValues<kShort, kBetween> - 1];
}

// A point of a tile has one value for each phase that reaches it: four where both axes are finite, one where none is.
// They follow each other, in the order AA, AB, BA, BB (down first).
struct Point {
  int row, column;
  int values;  // 1, 2 or 4
  int first;   // how many values the points before it have
};
constexpr int kNumPoints = kAxisPoints * kAxisPoints;
constexpr int kNumValues = 81;
constexpr std::array<Point, kNumPoints> make_points() {
  std::array<Point, kNumPoints> points{};
  int first = 0;
  for (int i = 0; i < kNumPoints; ++i) {
    const int row = i / kAxisPoints, column = i % kAxisPoints;
    const int values = (row == kInfinity ? 1 : 2) * (column == kInfinity ? 1 : 2);
    points[i] = {row, column, values, first};
    first += values;
  }
  return points;
}
constexpr std::array<Point, kNumPoints> kPointTable = make_points();
static_assert(kPointTable.back().first + kPointTable.back().values == kNumValues);

constexpr int value_at(const Point& point, bool between_rows, bool between_columns) {
  return (point.column == kInfinity ? 1 : 2) * between_rows + between_columns;
}

// Calls visit.operator()<between rows, between columns>() for all phases of an image.
template <typename Visit>
[[gnu::always_inline]] inline void for_phases(const Visit& visit) {
  visit.template operator()<false, false>();
  visit.template operator()<false, true>();
  visit.template operator()<true, false>();
  visit.template operator()<true, true>();
}

// Values of tiles at all points, with all phases or with one value a point: of row t of a point, value `value`, those
// of `width` vectors. Points lie an odd number of vectors apart: at a power of two they would fall into one set of the
// cache.
template <bool kPhases>
struct Values {
  int64_t rows, width;

  int64_t unit() const { return (rows * width) | 1; }
  int64_t vectors() const { return (kPhases ? kNumValues : kNumPoints) * unit(); }
  int64_t row(const Point& point) const { return (kPhases ? point.values : 1) * width; }
  int64_t start(int index) const { return (kPhases ? kPointTable[index].first : index) * unit(); }
  int64_t place(int index, int64_t t, int value) const {
    return start(index) + t * row(kPointTable[index]) + value * width;
  }
};

}  // namespace millrace::backend::cpu::winograd::phases
