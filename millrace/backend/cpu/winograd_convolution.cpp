// Winograd's convolution forward, and back with turned filters.
#include <omp.h>

#include <memory>

#include "millrace/backend/cpu/small_product.h"
#include "millrace/backend/cpu/winograd.h"
#include "millrace/backend/cpu/winograd_tiles.h"

namespace millrace::backend::cpu::winograd {
namespace {

struct Convolution {
  Tiling tiling;
  bool turned, bias, relu;
  int threads;
};

struct Operands {
  const Lanes* in;
  const float* w;
  const float* bias;
  Lanes* out;
};
Operands operands(const Convolution& conv, const Bindings& bind) {
  return {bind.read<Lanes>(0), bind.read<float>(1), conv.bias ? bind.read<float>(2) : nullptr, bind.write<Lanes>(0)};
}

// The filters of one block of output channels, as they are stored: w[o block][i block][r][r][i][o]. Filter c goes to
// u + c * pitch.
template <int kTaps>
void transform_filters(const Tiling& tiling, const float* w, int64_t out_block, Lanes* u, int64_t pitch,
                       int64_t stride) {
  constexpr int64_t kTapVectors = kBlock;  // from one tap to the next
  for (int64_t block = 0; block < tiling.in.blocks(); ++block) {
    const auto* filters =
        reinterpret_cast<const Lanes*>(w) + (out_block * tiling.in.blocks() + block) * kTaps * kTaps * kTapVectors;
    for (int lane = 0; lane < kBlock; ++lane) {
      fetch<kTaps * kTaps, 1, false>(filters + kTaps * kTaps * kTapVectors + lane, kTapVectors);  // of the next block
      filter_2d<kTaps, kTaps, kTile, kTile>({filters + lane, kTaps * kTapVectors, kTapVectors},
                                            points_at(u + (block * kBlock + lane) * pitch, stride));
    }
  }
}

// The same for the way back: filters turned by 180 degrees, channels exchanged. Here `in` is dy and `out` is dx.
template <int kTaps>
void transform_turned_filters(const Tiling& tiling, const float* w, int64_t out_block, Lanes* u, int64_t pitch,
                              int64_t stride) {
  constexpr int kSquare = kTaps * kTaps;
  for (int64_t block = 0; block < tiling.in.blocks(); ++block) {
    const float* filters = w + (block * tiling.out.blocks() + out_block) * kSquare * kBlock * kBlock;
    Lanes taps[kBlock][kSquare];
    auto* floats = reinterpret_cast<float*>(taps);
    for (int tap = 0; tap < kSquare; ++tap) {
      for (int k = 0; k < kBlock; ++k) {
        for (int lane = 0; lane < kBlock; ++lane) {
          floats[(lane * kSquare + kSquare - 1 - tap) * kBlock + k] = filters[(tap * kBlock + k) * kBlock + lane];
        }
      }
    }
    for (int lane = 0; lane < kBlock; ++lane) {
      filter_2d<kTaps, kTaps, kTile, kTile>({taps[lane], kTaps, 1},
                                            points_at(u + (block * kBlock + lane) * pitch, stride));
    }
  }
}

template <int kTaps>
void filters_to_points(const Convolution& conv, const float* w, int64_t out_block, Lanes* u, int64_t pitch,
                       int64_t stride) {
  const auto transform = conv.turned ? transform_turned_filters<kTaps> : transform_filters<kTaps>;
  transform(conv.tiling, w, out_block, u, pitch, stride);
}

Lanes bias_of(const Convolution& conv, const Operands& at, int64_t block) {
  return at.bias ? load_channels(at.bias, block, conv.tiling.out.channels) : Lanes{};
}

// From one point to the next there is one vector more than a point takes: at a distance of a power of two all points
// of a tile would fall into one cache set.

// Rows of products come in pairs: that of the last tile may be one that no tile has.
int64_t most_rows(int64_t tiles) { return tiles + 1; }

// --- A block of tiles at a time.

// How many tiles a block has: as many as keep its transformed tiles in a core's share of the caches. Filters too large
// for the last cache are read again for every block, which then had better be large.
int64_t most_tiles(const Tiling& tiling) {
  constexpr int64_t kFloat = sizeof(float), kMiB = 1 << 20;
  const int64_t filter_bytes = kPoints * tiling.in_channels() * tiling.out_channels() * kFloat;
  const int64_t cached_bytes = filter_bytes > 16 * kMiB ? 16 * kMiB : kMiB / 2;
  const int64_t tile_bytes = kPoints * (tiling.in_channels() + tiling.out_channels()) * kFloat;
  return std::clamp<int64_t>(cached_bytes / tile_bytes, 4 * kProductRows, 64 * kProductRows);
}

template <int kTaps>
Kernel in_blocks(const Convolution& conv) {
  constexpr int kOut = kTile + 1 - kTaps;
  const Tiling tiling = conv.tiling;
  const int64_t in_blocks = tiling.in.blocks(), out_blocks = tiling.out.blocks(), tiles = tiling.count();
  // As many blocks as share out evenly over the threads.
  const int64_t most = most_tiles(tiling), per_thread = (tiles + most * conv.threads - 1) / (most * conv.threads);
  const int64_t num_blocks = per_thread * conv.threads;
  const int64_t block_tiles = even_rows((tiles + num_blocks - 1) / num_blocks);

  const PackedPanels filters{out_blocks, tiling.in_channels()};
  const auto runs = std::make_shared<const TileRuns>(tiling, block_tiles);
  const bool past_caches = exceeds_caches(tiling.out);
  const int64_t rows = most_rows(block_tiles);
  const int64_t u_stride = filters.size() + 1, v_stride = rows * in_blocks + 1, m_stride = rows * out_blocks + 1;
  const int64_t own = kPoints * (v_stride + m_stride);
  Kernel kernel{"winograd_blocks", static_cast<size_t>(kPoints * u_stride + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const Operands at = operands(conv, bind);
    auto* u = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        Lanes* v = u + kPoints * u_stride + omp_get_thread_num() * own;
        Lanes* m = v + kPoints * v_stride;
#pragma omp for schedule(static)
        for (int64_t o = 0; o < out_blocks; ++o) {
          filters_to_points<kTaps>(conv, at.w, o, u + filters.place(0, o), filters.width(), u_stride);
        }
        // As they come: a core that is slower for a while does fewer.
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < runs->count(); ++block) {
          const TileRun run = runs->at(block);
          for (int64_t c = 0; c < in_blocks; ++c) {
            input_to_points<kOut>(tiling, at.in, run, c, v + c, in_blocks, v_stride);
          }
          for (int point = 0; point < kPoints; ++point) {
            const Range tiles_with = run.with_point(point);
            const ProductShape product{even_rows(tiles_with.count()), out_blocks, tiling.in_channels(),
                                       tiling.in_channels(),          1,          filters.width(),
                                       filters.panel_stride(),        out_blocks};
            const Lanes* from = v + point * v_stride + tiles_with.first * in_blocks;
            small_product<false>(product, reinterpret_cast<const float*>(from), u + point * u_stride,
                                 m + point * m_stride + tiles_with.first * out_blocks);
          }
          for (int64_t o = 0; o < out_blocks; ++o) {
            points_to_output<kOut>(tiling, m + o, out_blocks, m_stride, run, o,
                                   {bias_of(conv, at, o), conv.relu, past_caches}, at.out);
          }
        }
      }
    };
  };
  return kernel;
}

// --- A panel of output channels at a time.

template <int kTaps>
Kernel in_panels(const Convolution& conv) {
  constexpr int kOut = kTile + 1 - kTaps;
  const Tiling tiling = conv.tiling;
  const int64_t in_blocks = tiling.in.blocks(), out_blocks = tiling.out.blocks(), tiles = tiling.count();
  const auto runs = std::make_shared<const TileRuns>(tiling, tiles);
  const bool past_caches = exceeds_caches(tiling.out);
  const PackedPanels filters{out_blocks, tiling.in_channels()};
  const int64_t width = filters.width(), rows = most_rows(tiles);
  const int64_t u_stride = filters.panel_stride() + 1, v_stride = rows * in_blocks + 1, m_stride = rows * width + 1;
  const int64_t own = kPoints * (u_stride + m_stride);
  Kernel kernel{"winograd_panels", static_cast<size_t>(kPoints * v_stride + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const Operands at = operands(conv, bind);
    auto* v = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        const TileRun all = runs->at(0);
        Lanes* u = v + kPoints * v_stride + omp_get_thread_num() * own;
        Lanes* m = u + kPoints * u_stride;
#pragma omp for schedule(static)
        for (int64_t c = 0; c < in_blocks; ++c) {
          input_to_points<kOut>(tiling, at.in, all, c, v + c, in_blocks, v_stride);
        }
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < filters.panels(); ++panel) {
          const int64_t first = panel * kProductVectors, count = std::min(width, out_blocks - first);
          for (int64_t o = 0; o < count; ++o) filters_to_points<kTaps>(conv, at.w, first + o, u + o, width, u_stride);
          for (int point = 0; point < kPoints; ++point) {
            const Range tiles_with = all.with_point(point);
            const ProductShape product{
                even_rows(tiles_with.count()), count, tiling.in_channels(), tiling.in_channels(), 1, width, 0, width};
            const Lanes* from = v + point * v_stride + tiles_with.first * in_blocks;
            small_product<false>(product, reinterpret_cast<const float*>(from), u + point * u_stride,
                                 m + point * m_stride + tiles_with.first * width);
          }
          for (int64_t o = 0; o < count; ++o) {
            points_to_output<kOut>(tiling, m + o, width, m_stride, all, first + o,
                                   {bias_of(conv, at, first + o), conv.relu, past_caches}, at.out);
          }
        }
      }
    };
  };
  return kernel;
}

template <int kTaps>
std::vector<Kernel> kernels_of(const ConvProblem& problem, bool turned) {
  const graph::Window& w = problem.attrs.window;
  const Tiling back{BlockedShape(problem.y), BlockedShape(problem.x), kTaps - 1 - w.pad_h, kTaps - 1 - w.pad_w,
                    kTile + 1 - kTaps};
  const Tiling forth{BlockedShape(problem.x), BlockedShape(problem.y), w.pad_h, w.pad_w, kTile + 1 - kTaps};
  const Convolution conv{turned ? back : forth, turned, !turned && problem.attrs.bias, problem.relu,
                         omp_get_max_threads()};
  std::vector<Kernel> kernels{in_blocks<kTaps>(conv)};
  if (conv.tiling.suits_panels()) kernels.push_back(in_panels<kTaps>(conv));
  return kernels;
}

}  // namespace

std::vector<Kernel> convolution_kernels(const ConvProblem& problem, bool turned) {
  return problem.attrs.window.kernel_h == 3 ? kernels_of<3>(problem, turned) : kernels_of<5>(problem, turned);
}

}  // namespace millrace::backend::cpu::winograd
