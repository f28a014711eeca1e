// How the tiles of Winograd's convolution lie over images, and their way between images and points: the 36 values that
// a tile of one vector of channels becomes. Points of a tile lie `stride` vectors apart, tiles `pitch`.
//
// A run of tiles is gone through channel by channel: along a row of an image one tile follows the other in memory,
// which is asked for one tile ahead. (The hardware does not guess squares; without that most time is spent waiting.)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "millrace/backend/cpu/past_caches.h"
#include "millrace/backend/cpu/winograd_transform.h"

namespace millrace::backend::cpu::winograd {

// How the outputs along an axis are shared out over tiles: long ones first, then short ones with an output less.
struct Axis {
  int64_t tiles, shorts;
  int outputs;  // of a long tile

  Axis(int64_t extent, int outputs_of_tile)
      : tiles((extent + outputs_of_tile - 1) / outputs_of_tile), outputs(outputs_of_tile) {
    // Short tiles of two outputs are not worth their transforms.
    shorts = outputs == 4 ? std::min(tiles, tiles * outputs - extent) : 0;
  }
  bool is_short(int64_t tile) const { return tile >= tiles - shorts; }
  int64_t start(int64_t tile) const { return tile * outputs - std::max<int64_t>(0, tile - (tiles - shorts)); }
};

// One convolution from `in` to `out`, in tiles of `outputs` x `outputs` of `out` at most: forward from x to y, or
// backward from dy to dx with turned filters. The weight gradient has the tiles of the way forward.
struct Tiling {
  BlockedShape in, out;
  int64_t pad_h, pad_w;  // of `in`
  int outputs;

  Axis down() const { return {out.height, outputs}; }
  Axis across() const { return {out.width, outputs}; }
  int64_t count() const { return out.batch * down().tiles * across().tiles; }
  int64_t in_channels() const { return in.blocks() * kBlock; }
  int64_t out_channels() const { return out.blocks() * kBlock; }

  // Whether to have all tiles transformed at once may pay: they would otherwise be gigabytes beside small filters.
  bool suits_panels() const { return count() * (in_channels() + out_channels()) <= 8 * in_channels() * out_channels(); }
};

// Where a tile lies: sample, and its first output.
struct TileAt {
  int64_t n, row, column;
};

struct Range {
  int64_t first, last;
  int64_t count() const { return last - first; }
};

// Tiles that are worked on together. First those that are short across, then those that are long along both axes, then
// the short ones down, then the short ones along both: so that the tiles that have a point are always one range.
struct TileRun {
  const TileAt* tiles;
  std::array<int64_t, 5> bounds;  // of these four kinds

  int64_t count() const { return bounds[4]; }
  // Those that have a point which short tiles leave out `down`, `across` or along both axes.
  Range with_left_out(bool down, bool across) const {
    return {across ? bounds[1] : 0, down ? bounds[2] : across ? bounds[3] : bounds[4]};
  }
  Range with_point(int point) const { return with_left_out(point / kTile == kLeftOut, point % kTile == kLeftOut); }
};

// The tiles of a convolution in runs of equal length, image by image and row by row within each kind.
class TileRuns {
 public:
  TileRuns(const Tiling& tiling, int64_t most) {
    const Axis down = tiling.down(), across = tiling.across();
    std::vector<std::vector<TileAt>> kinds(4);
    const auto close = [&] {
      Run& run = runs_.emplace_back();
      run.first = static_cast<int64_t>(tiles_.size());
      for (size_t kind = 0; kind < kinds.size(); ++kind) {
        tiles_.insert(tiles_.end(), kinds[kind].begin(), kinds[kind].end());
        run.bounds[kind + 1] = static_cast<int64_t>(tiles_.size()) - run.first;
        kinds[kind].clear();
      }
    };
    int64_t open = 0;
    for (int64_t n = 0; n < tiling.out.batch; ++n) {
      for (int64_t i = 0; i < down.tiles; ++i) {
        for (int64_t j = 0; j < across.tiles; ++j) {
          const size_t kind = down.is_short(i) ? (across.is_short(j) ? 3 : 2) : across.is_short(j) ? 0 : 1;
          kinds[kind].push_back({n, down.start(i), across.start(j)});
          if (++open == most) {
            close();
            open = 0;
          }
        }
      }
    }
    if (open > 0) close();
  }
  int64_t count() const { return static_cast<int64_t>(runs_.size()); }
  TileRun at(int64_t run) const { return {tiles_.data() + runs_[run].first, runs_[run].bounds}; }

 private:
  struct Run {
    int64_t first = 0;
    std::array<int64_t, 5> bounds{};
  };
  std::vector<TileAt> tiles_;
  std::vector<Run> runs_;
};

// Calls visit.operator()<points down, points across>(tile, next tile, index) for the tiles of a run.
template <int kOut, typename Visit>
[[gnu::always_inline]] inline void for_tiles(const TileRun& run, const Visit& visit) {
  const auto of_kind = [&]<int kRows, int kColumns>(int64_t kind) {
    for (int64_t t = run.bounds[kind]; t < run.bounds[kind + 1]; ++t) {
      visit.template operator()<kRows, kColumns>(run.tiles[t], run.tiles[std::min(t + 1, run.count() - 1)], t);
    }
  };
  if constexpr (kOut == 4) of_kind.template operator()<kTile, kShortTile>(0);
  of_kind.template operator()<kTile, kTile>(1);
  if constexpr (kOut == 4) of_kind.template operator()<kShortTile, kTile>(2);
  if constexpr (kOut == 4) of_kind.template operator()<kShortTile, kShortTile>(3);
}

inline Square points_at(Lanes* data, int64_t stride) { return {data, kTile * stride, stride}; }
inline ConstSquare points_at(const Lanes* data, int64_t stride) { return {data, kTile * stride, stride}; }

// kRows x kColumns pixels of a plane where they lie, or with zeros for what is outside the plane, in `edge`.
template <int kRows, int kColumns>
inline ConstSquare pixels_at(const Lanes* plane, const BlockedShape& shape, int64_t row, int64_t column,
                             Lanes (&edge)[kRows][kColumns]) {
  if (row >= 0 && column >= 0 && row + kRows <= shape.height && column + kColumns <= shape.width) {
    return {plane + row * shape.width + column, shape.width, 1};
  }
  std::fill_n(&edge[0][0], kRows * kColumns, Lanes{});
  const int64_t left = std::max<int64_t>(0, -column), right = std::min<int64_t>(kColumns, shape.width - column);
  for (int64_t i = std::max<int64_t>(0, -row); i < std::min<int64_t>(kRows, shape.height - row); ++i) {
    for (int64_t j = left; j < right; ++j) edge[i][j] = plane[(row + i) * shape.width + column + j];
  }
  return {&edge[0][0], kColumns, 1};
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
void input_to_points(const Tiling& tiling, const Lanes* in, const TileRun& run, int64_t block, Lanes* points,
                     int64_t pitch, int64_t stride) {
  for_tiles<kOut>(run, [&]<int kRows, int kColumns>(const TileAt& at, const TileAt& next, int64_t t) {
    fetch<kTile, kOut, false>(in + tiling.in.plane(next.n, block) + (next.row - tiling.pad_h) * tiling.in.width +
                                  next.column - tiling.pad_w + kTile - kOut,
                              tiling.in.width);
    Lanes edge[kRows][kColumns];
    input_2d<kRows, kColumns>(
        pixels_at(in + tiling.in.plane(at.n, block), tiling.in, at.row - tiling.pad_h, at.column - tiling.pad_w, edge),
        points_at(points + t * pitch, stride));
  });
}

// The gradient of the output, as filters of kOut taps. Returns the sum of its pixels.
template <int kOut>
Lanes gradient_to_points(const Tiling& tiling, const Lanes* dy, const TileRun& run, int64_t block, Lanes* points,
                         int64_t pitch, int64_t stride) {
  Lanes sum{};
  for_tiles<kOut>(run, [&]<int kRows, int kColumns>(const TileAt& at, const TileAt& next, int64_t t) {
    constexpr int kOutRows = kOut - kTile + kRows, kOutColumns = kOut - kTile + kColumns;
    Lanes edge[kOutRows][kOutColumns];
    const ConstSquare pixels = pixels_at(dy + tiling.out.plane(at.n, block), tiling.out, at.row, at.column, edge);
    fetch<kOut, kOut, false>(dy + tiling.out.plane(next.n, block) + next.row * tiling.out.width + next.column,
                             tiling.out.width);
    filter_2d<kOutRows, kOutColumns, kRows, kColumns>(pixels, points_at(points + t * pitch, stride));
#pragma GCC unroll 8
    for (int i = 0; i < kOutRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kOutColumns; ++j) sum += pixels.at(i, j);
    }
  });
  return sum;
}

// What is done to outputs on their way.
struct Finish {
  Lanes bias;
  bool relu, past_caches;
};

template <int kOut>
void points_to_output(const Tiling& tiling, const Lanes* points, int64_t pitch, int64_t stride, const TileRun& run,
                      int64_t block, const Finish& finish, Lanes* out) {
  for_tiles<kOut>(run, [&]<int kRows, int kColumns>(const TileAt& at, const TileAt& next, int64_t t) {
    constexpr int kOutRows = kOut - kTile + kRows, kOutColumns = kOut - kTile + kColumns;
    Lanes* pixel = out + tiling.out.plane(at.n, block) + at.row * tiling.out.width + at.column;
    const int64_t rows = std::min<int64_t>(kOutRows, tiling.out.height - at.row);
    const int64_t columns = std::min<int64_t>(kOutColumns, tiling.out.width - at.column);
    const bool whole = rows == kOutRows && columns == kOutColumns;
    const ConstSquare from = points_at(points + t * pitch, stride);
    const auto finished = [&](Lanes value) {
      value += finish.bias;
      return finish.relu ? relu(value) : value;
    };
    if (finish.past_caches && whole) {
      output_2d<kOutRows, kOutColumns, kRows, kColumns>(from, [&](int row, int column, Lanes value) {
        store_past_caches(pixel[row * tiling.out.width + column], finished(value));
      });
      return;
    }
    fetch<kOut, kOut, true>(out + tiling.out.plane(next.n, block) + next.row * tiling.out.width + next.column,
                            tiling.out.width);
    Lanes edge[kOutRows][kOutColumns];
    const Square to = whole ? Square{pixel, tiling.out.width, 1} : Square{&edge[0][0], kOutColumns, 1};
    output_2d<kOutRows, kOutColumns, kRows, kColumns>(
        from, [&](int row, int column, Lanes value) { to.at(row, column) = finished(value); });
    if (whole) return;
    for (int64_t i = 0; i < rows; ++i) std::copy_n(edge[i], columns, pixel + i * tiling.out.width);
  });
  finish_past_caches();
}

}  // namespace millrace::backend::cpu::winograd
