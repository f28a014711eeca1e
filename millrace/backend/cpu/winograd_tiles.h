// How the tiles of Winograd's convolution lie over images, and their way between images and points: the 36 values that
// a tile of one vector of channels becomes. Points of a tile lie `stride` vectors apart, tiles `pitch`.
//
// A run of tiles is gone through channel by channel: along a row of an image one tile follows the other in memory,
// which is asked for one tile ahead. (The hardware does not guess squares; without that most time is spent waiting.)
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/winograd_transform.h"

namespace millrace::backend::cpu::winograd {

// One convolution from `in` to `out`, in tiles of `outputs` x `outputs` of `out`: forward from x to y, or backward from
// dy to dx with turned filters. The weight gradient has the tiles of the way forward.
struct Tiling {
  BlockedShape in, out;
  int64_t pad_h, pad_w;  // of `in`
  int outputs;

  int64_t tiles_h() const { return (out.height + outputs - 1) / outputs; }
  int64_t tiles_w() const { return (out.width + outputs - 1) / outputs; }
  int64_t count() const { return out.batch * tiles_h() * tiles_w(); }
  int64_t in_channels() const { return in.blocks() * kBlock; }
  int64_t out_channels() const { return out.blocks() * kBlock; }

  // Whether to have all tiles transformed at once may pay: they would otherwise be gigabytes beside small filters.
  bool suits_panels() const { return count() * (in_channels() + out_channels()) <= 8 * in_channels() * out_channels(); }
};

// A run of tiles, image by image and row by row.
struct TileRun {
  int64_t first, count;
};

class TileCursor {
 public:
  TileCursor(const Tiling& tiling, int64_t tile) : tiling_(tiling) {
    const int64_t per_row = tiling.tiles_w(), per_image = tiling.tiles_h() * per_row, within = tile % per_image;
    n = tile / per_image;
    row = within / per_row * tiling.outputs;
    column = within % per_row * tiling.outputs;
  }
  void advance() {
    column += tiling_.outputs;
    if (column < tiling_.out.width) return;
    column = 0;
    row += tiling_.outputs;
    if (row < tiling_.out.height) return;
    row = 0;
    ++n;
  }

  int64_t n, row, column;  // sample, and the first output

 private:
  const Tiling& tiling_;
};

inline Square points_at(Lanes* data, int64_t stride) { return {data, kTile * stride, stride}; }
inline ConstSquare points_at(const Lanes* data, int64_t stride) { return {data, kTile * stride, stride}; }

// A square of kSize pixels of a plane where it lies, or with zeros for what is outside the plane, in `edge`.
template <int kSize>
inline ConstSquare pixels_at(const Lanes* plane, const BlockedShape& shape, int64_t row, int64_t column,
                             Lanes (&edge)[kSize][kSize]) {
  if (row >= 0 && column >= 0 && row + kSize <= shape.height && column + kSize <= shape.width) {
    return {plane + row * shape.width + column, shape.width, 1};
  }
  std::fill_n(&edge[0][0], kSize * kSize, Lanes{});
  const int64_t left = std::max<int64_t>(0, -column), right = std::min<int64_t>(kSize, shape.width - column);
  for (int64_t i = std::max<int64_t>(0, -row); i < std::min<int64_t>(kSize, shape.height - row); ++i) {
    for (int64_t j = left; j < right; ++j) edge[i][j] = plane[(row + i) * shape.width + column + j];
  }
  return {&edge[0][0], kSize, 1};
}

// Asking for memory is no access: a square may reach past its plane.
template <int kRows, int kColumns, bool kWrite>
inline void fetch(const Lanes* pixel, int64_t width) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) __builtin_prefetch(pixel + i * width + j, kWrite);
  }
}

template <int kOut>
void input_to_points(const Tiling& tiling, const Lanes* in, TileRun run, int64_t block, Lanes* points, int64_t pitch,
                     int64_t stride) {
  TileCursor at(tiling, run.first);
  for (int64_t t = 0; t < run.count; ++t) {
    const Lanes* plane = in + tiling.in.plane(at.n, block);
    const int64_t row = at.row - tiling.pad_h, column = at.column - tiling.pad_w;
    at.advance();
    fetch<kTile, kOut, false>(in + tiling.in.plane(at.n, block) + (at.row - tiling.pad_h) * tiling.in.width +
                                  at.column - tiling.pad_w + kTile - kOut,
                              tiling.in.width);
    Lanes edge[kTile][kTile];
    input_2d(pixels_at(plane, tiling.in, row, column, edge), points_at(points + t * pitch, stride));
  }
}

// The gradient of the output, as filters of kOut taps. Returns the sum of its pixels.
template <int kOut>
Lanes gradient_to_points(const Tiling& tiling, const Lanes* dy, TileRun run, int64_t block, Lanes* points,
                         int64_t pitch, int64_t stride) {
  Lanes sum{};
  TileCursor at(tiling, run.first);
  for (int64_t t = 0; t < run.count; ++t) {
    Lanes edge[kOut][kOut];
    const ConstSquare pixels = pixels_at(dy + tiling.out.plane(at.n, block), tiling.out, at.row, at.column, edge);
    at.advance();
    fetch<kOut, kOut, false>(dy + tiling.out.plane(at.n, block) + at.row * tiling.out.width + at.column,
                             tiling.out.width);
    filter_2d<kOut>(pixels, points_at(points + t * pitch, stride));
#pragma GCC unroll 8
    for (int i = 0; i < kOut; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kOut; ++j) sum += pixels.at(i, j);
    }
  }
  return sum;
}

template <int kOut>
void points_to_output(const Tiling& tiling, const Lanes* points, int64_t pitch, int64_t stride, TileRun run,
                      int64_t block, Lanes bias, bool relu_after, Lanes* out) {
  TileCursor at(tiling, run.first);
  for (int64_t t = 0; t < run.count; ++t) {
    Lanes* pixel = out + tiling.out.plane(at.n, block) + at.row * tiling.out.width + at.column;
    const int64_t rows = std::min<int64_t>(kOut, tiling.out.height - at.row);
    const int64_t columns = std::min<int64_t>(kOut, tiling.out.width - at.column);
    at.advance();
    fetch<kOut, kOut, true>(out + tiling.out.plane(at.n, block) + at.row * tiling.out.width + at.column,
                            tiling.out.width);
    const bool whole = rows == kOut && columns == kOut;
    Lanes edge[kOut][kOut];
    const Square to = whole ? Square{pixel, tiling.out.width, 1} : Square{&edge[0][0], kOut, 1};
    output_2d<kOut>(points_at(points + t * pitch, stride), [&](int row, int column, Lanes value) {
      value += bias;
      to.at(row, column) = relu_after ? relu(value) : value;
    });
    if (whole) continue;
    for (int64_t i = 0; i < rows; ++i) std::copy_n(edge[i], columns, pixel + i * tiling.out.width);
  }
}

}  // namespace millrace::backend::cpu::winograd
