// Winograd's convolution for 3 x 3 filters of stride 2 with a padding of 1. Tiles are of y: 4 x 4 of its pixels, which
// read 9 x 9 of x, and whose gradients, with a row and a column of the next tiles, make 8 x 8 of dx.
#include "millrace/backend/cpu/winograd_phases.h"

#include <omp.h>

#include <memory>

#include "millrace/backend/cpu/small_product.h"
#include "millrace/backend/cpu/winograd.h"
#include "millrace/backend/cpu/winograd_tiles.h"

namespace millrace::backend::cpu::winograd {
namespace {

using namespace phases;

constexpr int kTaps = 3, kSquare = kTaps * kTaps;

struct Strided {
  BlockedShape x, y;
  int threads;

  Tiling tiling() const { return {x, y, 1, 1, kOutputs}; }
  int64_t in_channels() const { return x.blocks() * kBlock; }
  int64_t out_channels() const { return y.blocks() * kBlock; }
  int64_t filter_bytes() const {
    return kNumValues * in_channels() * out_channels() * static_cast<int64_t>(sizeof(float));
  }
};

// Calls visit.operator()<short down, short across>(tile, next tile, index).
template <typename Visit>
[[gnu::always_inline]] inline void for_strided_tiles(const TileRun& run, const Visit& visit) {
  for_tiles<kOutputs>(run, [&]<int kRows, int kColumns>(const TileAt& at, const TileAt& next, int64_t t) {
    visit.template operator()<kRows == kShortTile, kColumns == kShortTile>(at, next, t);
  });
}

Range tiles_with(const TileRun& run, const Point& point) {
  return run.with_left_out(point.row == kOptional, point.column == kOptional);
}

// One block of channels of x, to all phases: from `v` on.
void x_to_values(const Strided& conv, const Lanes* x, const TileRun& run, int64_t block, const Values<true>& values,
                 Lanes* v) {
  const int64_t width = conv.x.width;
  for_strided_tiles(run, [&]<bool kDown, bool kAcross>(const TileAt& at, const TileAt& next, int64_t t) {
    constexpr int kHeight = 9 - 2 * kDown, kWidth = 9 - 2 * kAcross;
    fetch<8, 8, false>(x + conv.x.plane(next.n, block) + 2 * next.row * width + 2 * next.column, width);
    Lanes edge[kHeight][kWidth];
    const ConstSquare pixels =
        pixels_at(x + conv.x.plane(at.n, block), conv.x, 2 * at.row - 1, 2 * at.column - 1, edge);
    for_phases([&]<bool kRowB, bool kColumnB> [[gnu::always_inline]] () {
      constexpr int kRows = kValues<kDown, kRowB>, kColumns = kValues<kAcross, kColumnB>;
      both_axes<kRows, kColumns, kRows, kColumns>(
          [](const auto& from, auto& to) { phases::input_1d<kDown, kRowB>(from, to); },
          [](const auto& from, auto& to) { phases::input_1d<kAcross, kColumnB>(from, to); },
          [&](int row, int column) { return pixels.at(2 * row + kRowB, 2 * column + kColumnB); },
          [&](int row, int column, Lanes value) {
            const int index = point_of<kDown>(row) * kAxisPoints + point_of<kAcross>(column);
            v[values.place(index, t, value_at(kPointTable[index], kRowB, kColumnB))] = value;
          });
    });
  });
}

// One block of channels of dy as it is read by the way back.
void dy_to_values(const Strided& conv, const Lanes* dy, const TileRun& run, int64_t block, const Values<false>& values,
                  Lanes* v) {
  for_strided_tiles(run, [&]<bool kDown, bool kAcross>(const TileAt& at, const TileAt& next, int64_t t) {
    constexpr int kRows = kValues<kDown, false>, kColumns = kValues<kAcross, false>;
    fetch<kOutputs, kOutputs, false>(dy + conv.y.plane(next.n, block) + next.row * conv.y.width + next.column,
                                     conv.y.width);
    Lanes edge[kRows][kColumns];
    const ConstSquare pixels = pixels_at(dy + conv.y.plane(at.n, block), conv.y, at.row, at.column, edge);
    both_axes<kRows, kColumns, kRows, kColumns>(
        [](const auto& from, auto& to) { phases::input_1d<kDown, false>(from, to); },
        [](const auto& from, auto& to) { phases::input_1d<kAcross, false>(from, to); },
        [&](int row, int column) { return pixels.at(row, column); },
        [&](int row, int column, Lanes value) {
          const int index = point_of<kDown>(row) * kAxisPoints + point_of<kAcross>(column);
          v[values.place(index, t, 0) + block] = value;
        });
  });
}

// Nine taps of one input channel and a vector of output channels, to all phases: store(point, value, result).
template <typename Load, typename Store>
[[gnu::always_inline]] inline void filter_to_values(const Load& tap, const Store& store) {
  for_phases([&]<bool kRowB, bool kColumnB> [[gnu::always_inline]] () {
    constexpr int kTapRows = 2 - kRowB, kTapColumns = 2 - kColumnB;
    both_axes<kTapRows, kTapColumns, kValues<false, kRowB>, kValues<false, kColumnB>>(
        [](const auto& from, auto& to) { phases::filter_1d<false, kRowB>(from, to); },
        [](const auto& from, auto& to) { phases::filter_1d<false, kColumnB>(from, to); },
        [&](int row, int column) { return tap(kRowB ? 1 : 2 * row, kColumnB ? 1 : 2 * column); },
        [&](int row, int column, Lanes value) {
          const int index = row * kAxisPoints + column;
          store(index, value_at(kPointTable[index], kRowB, kColumnB), value);
        });
  });
}

// Filters of all points in packed panels, those of a point one after the other: B of the products.
struct Filters {
  int64_t vectors, depth;  // of one value
  bool along_depth;        // whether the values of a point add to the depth, or to the columns

  PackedPanels of(const Point& point) const {
    return along_depth ? PackedPanels{vectors, point.values * depth} : PackedPanels{point.values * vectors, depth};
  }
  int64_t unit() const { return ((vectors + kProductVectors - 1) / kProductVectors * kProductVectors * depth) | 1; }
  int64_t size() const { return kNumValues * unit(); }
  int64_t place(int index, int value, int64_t k, int64_t column) const {
    const Point& point = kPointTable[index];
    return point.first * unit() +
           (along_depth ? of(point).place(value * depth + k, column) : of(point).place(k, value * vectors + column));
  }
};

// Forward and back go a block of tiles at a time, with all filters transformed before. How many tiles a block has: few
// enough to stay in the second cache, enough to read filters not too often. (Less and more are no faster.)
int64_t tiles_of_block(const Strided& conv, int64_t values_of_tile) {
  constexpr int64_t kBlockBytes = 2 << 20;
  const int64_t tiles = conv.tiling().count();
  const int64_t most = std::clamp<int64_t>(kBlockBytes / (values_of_tile * static_cast<int64_t>(sizeof(float))),
                                           4 * kProductRows, 64 * kProductRows);
  const int64_t per_thread = (tiles + most * conv.threads - 1) / (most * conv.threads);
  return even_rows((tiles + per_thread * conv.threads - 1) / (per_thread * conv.threads));
}

Kernel forward(const Strided& conv) {
  const int64_t in_blocks = conv.x.blocks(), out_blocks = conv.y.blocks();
  const int64_t block_tiles = tiles_of_block(conv, kNumValues * conv.in_channels() + kNumPoints * conv.out_channels());
  const auto runs = std::make_shared<const TileRuns>(conv.tiling(), block_tiles);
  const Values<true> v_values{block_tiles + 1, in_blocks};
  const Values<false> m_values{block_tiles + 1, out_blocks};
  const Filters filters{out_blocks, conv.in_channels(), true};
  const bool past_caches = exceeds_caches(conv.y);
  const int64_t own = v_values.vectors() + m_values.vectors();
  Kernel kernel{"winograd_phases", static_cast<size_t>(filters.size() + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* x = bind.read<Lanes>(0);
    const auto* w = bind.read<Lanes>(1);
    auto* y = bind.write<Lanes>(0);
    auto* u = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        Lanes* v = u + filters.size() + omp_get_thread_num() * own;
        Lanes* m = v + v_values.vectors();
#pragma omp for schedule(static)
        for (int64_t o = 0; o < out_blocks; ++o) {
          for (int64_t c = 0; c < conv.in_channels(); ++c) {
            const Lanes* taps = w + (o * in_blocks + c / kBlock) * kSquare * kBlock + c % kBlock;
            filter_to_values(
                [&](int row, int column) { return taps[(row * kTaps + column) * kBlock]; },
                [&](int index, int value, Lanes result) { u[filters.place(index, value, c, o)] = result; });
          }
        }
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < runs->count(); ++block) {
          const TileRun run = runs->at(block);
          for (int64_t c = 0; c < in_blocks; ++c) x_to_values(conv, x, run, c, v_values, v + c);
          for (int index = 0; index < kNumPoints; ++index) {
            const Point& point = kPointTable[index];
            const Range tiles = tiles_with(run, point);
            const PackedPanels b = filters.of(point);
            const ProductShape product{even_rows(tiles.count()), out_blocks, b.depth, b.depth, 1, b.width(),
                                       b.panel_stride(),         out_blocks};
            small_product<false>(product, reinterpret_cast<const float*>(v + v_values.place(index, tiles.first, 0)),
                                 u + point.first * filters.unit(), m + m_values.place(index, tiles.first, 0));
          }
          for (int64_t o = 0; o < out_blocks; ++o) {
            for_strided_tiles(run, [&]<bool kDown, bool kAcross>(const TileAt& at, const TileAt&, int64_t t) {
              constexpr int kRows = kOutputs - kDown, kColumns = kOutputs - kAcross;
              Lanes* pixel = y + conv.y.plane(at.n, o) + at.row * conv.y.width + at.column;
              const int64_t rows = conv.y.height - at.row, columns = conv.y.width - at.column;
              both_axes<kValues<kDown, false>, kValues<kAcross, false>, kRows, kColumns>(
                  [](const auto& from, auto& to) { phases::output_1d<kDown, false>(from, to); },
                  [](const auto& from, auto& to) { phases::output_1d<kAcross, false>(from, to); },
                  [&](int row, int column) {
                    return m[m_values.place(point_of<kDown>(row) * kAxisPoints + point_of<kAcross>(column), t, 0) + o];
                  },
                  [&](int row, int column, Lanes value) {
                    if (row >= rows || column >= columns) return;
                    Lanes& to = pixel[row * conv.y.width + column];
                    past_caches ? store_past_caches(to, value) : void(to = value);
                  });
            });
          }
          finish_past_caches();
        }
      }
    };
  };
  return kernel;
}

// Phases of dx: pixels in odd rows (and columns) are of phase A, with the taps the other way round.
Kernel input_gradient(const Strided& conv) {
  const int64_t in_blocks = conv.x.blocks(), out_blocks = conv.y.blocks();
  const int64_t block_tiles = tiles_of_block(conv, kNumPoints * conv.out_channels() + kNumValues * conv.in_channels());
  const auto runs = std::make_shared<const TileRuns>(conv.tiling(), block_tiles);
  const Values<false> v_values{block_tiles + 1, out_blocks};
  const Values<true> m_values{block_tiles + 1, in_blocks};
  const Filters filters{in_blocks, conv.out_channels(), false};
  const bool past_caches = exceeds_caches(conv.x);
  const int64_t own = v_values.vectors() + m_values.vectors();
  Kernel kernel{"winograd_phases", static_cast<size_t>(filters.size() + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* dy = bind.read<Lanes>(0);
    const auto* w = bind.read<float>(1);
    auto* dx = bind.write<Lanes>(0);
    auto* u = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        Lanes* v = u + filters.size() + omp_get_thread_num() * own;
        Lanes* m = v + v_values.vectors();
#pragma omp for schedule(static) collapse(2)
        for (int64_t c = 0; c < in_blocks; ++c) {
          for (int64_t o = 0; o < out_blocks; ++o) {
            const float* block = w + (o * in_blocks + c) * kSquare * kBlock * kBlock;
            Lanes taps[kBlock][kSquare];  // [output channel][tap], of vectors of input channels
            auto* floats = reinterpret_cast<float*>(taps);
            for (int tap = 0; tap < kSquare; ++tap) {
              for (int k = 0; k < kBlock; ++k) {
                for (int lane = 0; lane < kBlock; ++lane) {
                  floats[(lane * kSquare + tap) * kBlock + k] = block[(tap * kBlock + k) * kBlock + lane];
                }
              }
            }
            for (int lane = 0; lane < kBlock; ++lane) {
              filter_to_values([&](int row, int column) { return taps[lane][kSquare - 1 - (row * kTaps + column)]; },
                               [&](int index, int value, Lanes result) {
                                 u[filters.place(index, value, o * kBlock + lane, c)] = result;
                               });
            }
          }
        }
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < runs->count(); ++block) {
          const TileRun run = runs->at(block);
          for (int64_t o = 0; o < out_blocks; ++o) dy_to_values(conv, dy, run, o, v_values, v);
          for (int index = 0; index < kNumPoints; ++index) {
            const Point& point = kPointTable[index];
            const Range tiles = tiles_with(run, point);
            const PackedPanels b = filters.of(point);
            const ProductShape product{even_rows(tiles.count()), b.vectors, b.depth, b.depth, 1, b.width(),
                                       b.panel_stride(),         b.vectors};
            small_product<false>(product, reinterpret_cast<const float*>(v + v_values.place(index, tiles.first, 0)),
                                 u + point.first * filters.unit(), m + m_values.place(index, tiles.first, 0));
          }
          for (int64_t c = 0; c < in_blocks; ++c) {
            for_strided_tiles(run, [&]<bool kDown, bool kAcross>(const TileAt& at, const TileAt&, int64_t t) {
              constexpr int kRows = kOutputs - kDown, kColumns = kOutputs - kAcross;
              Lanes* pixel = dx + conv.x.plane(at.n, c) + 2 * at.row * conv.x.width + 2 * at.column;
              const int64_t rows = conv.x.height - 2 * at.row, columns = conv.x.width - 2 * at.column;
              for_phases([&]<bool kRowB, bool kColumnB> [[gnu::always_inline]] () {
                both_axes<kValues<kDown, kRowB>, kValues<kAcross, kColumnB>, kRows, kColumns>(
                    [](const auto& from, auto& to) { phases::output_1d<kDown, kRowB>(from, to); },
                    [](const auto& from, auto& to) { phases::output_1d<kAcross, kColumnB>(from, to); },
                    [&](int row, int column) {
                      const int index = point_of<kDown>(row) * kAxisPoints + point_of<kAcross>(column);
                      return m[m_values.place(index, t, value_at(kPointTable[index], kRowB, kColumnB)) + c];
                    },
                    [&](int row, int column, Lanes value) {
                      const int i = 2 * row + !kRowB, j = 2 * column + !kColumnB;
                      if (i >= rows || j >= columns) return;
                      Lanes& to = pixel[i * conv.x.width + j];
                      past_caches ? store_past_caches(to, value) : void(to = value);
                    });
              });
            });
          }
          finish_past_caches();
        }
      }
    };
  };
  return kernel;
}

// One block of channels of dy as filters of a tile: value of point `index` and tile t at d[index * stride + t * pitch].
void dy_to_filters(const Strided& conv, const Lanes* dy, const TileRun& run, int64_t block, Lanes* d, int64_t pitch,
                   int64_t stride) {
  for_strided_tiles(run, [&]<bool kDown, bool kAcross>(const TileAt& at, const TileAt& next, int64_t t) {
    constexpr int kRows = kOutputs - kDown, kColumns = kOutputs - kAcross;
    fetch<kOutputs, kOutputs, false>(dy + conv.y.plane(next.n, block) + next.row * conv.y.width + next.column,
                                     conv.y.width);
    Lanes edge[kRows][kColumns];
    const ConstSquare pixels = pixels_at(dy + conv.y.plane(at.n, block), conv.y, at.row, at.column, edge);
    both_axes<kRows, kColumns, kValues<kDown, false>, kValues<kAcross, false>>(
        [](const auto& from, auto& to) { phases::filter_1d<kDown, false>(from, to); },
        [](const auto& from, auto& to) { phases::filter_1d<kAcross, false>(from, to); },
        [&](int row, int column) { return pixels.at(row, column); },
        [&](int row, int column, Lanes value) {
          d[(point_of<kDown>(row) * kAxisPoints + point_of<kAcross>(column)) * stride + t * pitch] = value;
        });
  });
}

// The nine taps of an input channel and a vector of output channels: sum(point, value) is what was summed.
template <typename Sum>
[[gnu::always_inline]] inline void sums_to_filter(const Sum& sum, Lanes* taps) {
  for_phases([&]<bool kRowB, bool kColumnB> [[gnu::always_inline]] () {
    both_axes<kValues<false, kRowB>, kValues<false, kColumnB>, 2 - kRowB, 2 - kColumnB>(
        [](const auto& from, auto& to) { phases::output_1d<false, kRowB>(from, to); },
        [](const auto& from, auto& to) { phases::output_1d<false, kColumnB>(from, to); },
        [&](int row, int column) {
          const Point& point = kPointTable[row * kAxisPoints + column];
          return sum(point, value_at(point, kRowB, kColumnB));
        },
        [&](int row, int column, Lanes value) {
          taps[((kRowB ? 1 : 2 * row) * kTaps + (kColumnB ? 1 : 2 * column)) * kBlock] = value;
        });
  });
}

// All tiles are transformed before; a panel of output channels and one block of input channels then are summed over all
// of them at once, and go straight on to the filters they become.
Kernel weight_gradient(const Strided& conv) {
  const int64_t in_blocks = conv.x.blocks(), out_blocks = conv.y.blocks(), tiles = conv.tiling().count();
  const auto runs = std::make_shared<const TileRuns>(conv.tiling(), tiles);
  const Values<true> v_values{tiles, 1};
  const PackedPanels gradients{out_blocks, tiles};
  const int64_t width = gradients.width(), d_stride = gradients.panel_stride() | 1;
  const int64_t v_vectors = in_blocks * v_values.vectors(), d_vectors = gradients.panels() * kNumPoints * d_stride;
  const int64_t s_unit = (kBlock * width) | 1, own = kNumValues * s_unit;
  Kernel kernel{"winograd_phases", static_cast<size_t>(v_vectors + d_vectors + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* x = bind.read<Lanes>(0);
    const auto* dy = bind.read<Lanes>(1);
    auto* dw = bind.write<Lanes>(0);
    auto* v = static_cast<Lanes*>(bind.scratch);
    auto* d = v + v_vectors;
    auto* sums = d + d_vectors;
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        const TileRun all = runs->at(0);
        Lanes* s = sums + omp_get_thread_num() * own;
#pragma omp for schedule(static)
        for (int64_t c = 0; c < in_blocks; ++c) {
          x_to_values(conv, x, all, c, v_values, v + c * v_values.vectors());
        }
#pragma omp for schedule(static)
        for (int64_t o = 0; o < out_blocks; ++o) {
          Lanes* panel = d + o / kProductVectors * kNumPoints * d_stride;
          dy_to_filters(conv, dy, all, o, panel + o % kProductVectors, width, d_stride);
        }
#pragma omp for schedule(static) collapse(2)
        for (int64_t panel = 0; panel < gradients.panels(); ++panel) {
          for (int64_t c = 0; c < in_blocks; ++c) {
            const int64_t first = panel * kProductVectors, count = std::min(width, out_blocks - first);
            for (int index = 0; index < kNumPoints; ++index) {
              const Point& point = kPointTable[index];
              const Range with = tiles_with(all, point);
              const int64_t channels = point.values * kBlock;
              const ProductShape product{channels, count, with.count(), 1, channels, width, 0, width};
              const Lanes* from = v + c * v_values.vectors() + v_values.place(index, with.first, 0);
              small_product<false>(product, reinterpret_cast<const float*>(from),
                                   d + (panel * kNumPoints + index) * d_stride + with.first * width,
                                   s + point.first * s_unit);
            }
            for (int64_t lane = 0; lane < kBlock; ++lane) {
              for (int64_t o = 0; o < count; ++o) {
                sums_to_filter([&](const Point& point,
                                   int value) { return s[point.first * s_unit + (value * kBlock + lane) * width + o]; },
                               dw + ((first + o) * in_blocks + c) * kSquare * kBlock + lane);
              }
            }
          }
        }
      }
    };
  };
  return kernel;
}

}  // namespace

std::vector<Kernel> strided_kernels(const ConvProblem& problem) {
  const Strided conv{BlockedShape(problem.x), BlockedShape(problem.y), omp_get_max_threads()};
  if (problem.pass == graph::Pass::WeightGrad) return {weight_gradient(conv)};
  // Filters have nine times as many values as taps: where these do not stay in the last cache there is no gain.
  constexpr int64_t kMostBytes = 32 << 20;
  if (conv.filter_bytes() > kMostBytes) return {};
  return {problem.pass == graph::Pass::InputGrad ? input_gradient(conv) : forward(conv)};
}

}  // namespace millrace::backend::cpu::winograd
