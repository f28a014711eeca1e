// Winograd's weight gradient: tiles of x and of dy are multiplied point by point and summed over all tiles.
#include <omp.h>

#include <memory>

#include "millrace/backend/cpu/small_product.h"
#include "millrace/backend/cpu/winograd.h"
#include "millrace/backend/cpu/winograd_tiles.h"

namespace millrace::backend::cpu::winograd {
namespace {

struct WeightGradient {
  Tiling tiling;
  bool bias;
  int threads;
};

struct Operands {
  const Lanes *x, *dy;
  float *dw, *db;
};
Operands operands(const WeightGradient& grad, const Bindings& bind) {
  return {bind.read<Lanes>(0), bind.read<Lanes>(1), bind.write<float>(0), grad.bias ? bind.write<float>(1) : nullptr};
}

// The filters of one input channel and one block of output channels, dw[o block][i block][r][r][i][o].
template <int kTaps>
void points_to_filters(const Tiling& tiling, ConstSquare points, int64_t channel, int64_t out_block, float* dw) {
  auto* filters = reinterpret_cast<Lanes*>(dw) +
                  (out_block * tiling.in.blocks() + channel / kBlock) * kTaps * kTaps * kBlock + channel % kBlock;
  output_2d<kTaps, kTaps, kTile, kTile>(
      points, [&](int row, int column, Lanes value) { filters[(row * kTaps + column) * kBlock] = value; });
}

// --- A block of tiles at a time; every thread sums all filters over its blocks.

int64_t most_tiles(const Tiling& tiling) {
  constexpr int64_t kFloat = sizeof(float), kMiB = 1 << 20;
  const int64_t tile_bytes = kPoints * (tiling.in_channels() + tiling.out_channels()) * kFloat;
  const int64_t sum_bytes = kPoints * tiling.in_channels() * tiling.out_channels() * kFloat;
  // Sums that do not fit the nearer cache are read and written once a block: fewer, larger blocks then.
  return std::clamp<int64_t>(std::max(kMiB, sum_bytes / 2) / tile_bytes, 24, 384);
}

template <int kTaps>
Kernel in_blocks(const WeightGradient& grad) {
  constexpr int kOut = kTile + 1 - kTaps;
  const Tiling tiling = grad.tiling;
  const int64_t in_blocks = tiling.in.blocks(), out_blocks = tiling.out.blocks(), tiles = tiling.count();
  const int64_t most = most_tiles(tiling), per_thread = (tiles + most * grad.threads - 1) / (most * grad.threads);
  const int64_t num_blocks = per_thread * grad.threads, block_tiles = (tiles + num_blocks - 1) / num_blocks;

  const auto runs = std::make_shared<const TileRuns>(tiling, block_tiles);
  const PackedPanels gradients{out_blocks, block_tiles};
  const int64_t v_stride = block_tiles * in_blocks + 1, d_stride = gradients.size() + 1;
  const int64_t s_stride = tiling.in_channels() * out_blocks + 1;
  const int64_t own = kPoints * (v_stride + d_stride + s_stride) + out_blocks;
  Kernel kernel{"winograd_blocks", static_cast<size_t>(grad.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const Operands at = operands(grad, bind);
    auto* sums = static_cast<Lanes*>(bind.scratch);  // S[point][input channel][output channel]
    auto* biases = sums + kPoints * s_stride;
    return [=](const StepContext&) {
#pragma omp parallel num_threads(grad.threads)
      {
        const int64_t mine = omp_get_thread_num() * own;
        Lanes* s = sums + mine;
        Lanes* bias_sums = biases + mine;
        Lanes* v = bias_sums + out_blocks;
        Lanes* d = v + kPoints * v_stride;
        std::fill_n(bias_sums, out_blocks, Lanes{});
        bool begun = false;
#pragma omp for schedule(static)
        for (int64_t block = 0; block < runs->count(); ++block) {
          const TileRun run = runs->at(block);
          for (int64_t c = 0; c < in_blocks; ++c) {
            input_to_points<kOut>(tiling, at.x, run, c, v + c, in_blocks, v_stride);
          }
          for (int64_t o = 0; o < out_blocks; ++o) {
            bias_sums[o] +=
                gradient_to_points<kOut>(tiling, at.dy, run, o, d + gradients.place(0, o), gradients.width(), d_stride);
          }
          const auto multiply = begun ? small_product<true> : small_product<false>;
          for (int point = 0; point < kPoints; ++point) {
            const Range tiles_with = run.with_point(point);
            const ProductShape product{tiling.in_channels(), out_blocks,        tiles_with.count(),       1,
                                       tiling.in_channels(), gradients.width(), gradients.panel_stride(), out_blocks};
            const Lanes* from = v + point * v_stride + tiles_with.first * in_blocks;
            multiply(product, reinterpret_cast<const float*>(from),
                     d + point * d_stride + tiles_with.first * gradients.width(), s + point * s_stride);
          }
          begun = true;
        }
        if (!begun) std::fill_n(s, kPoints * s_stride, Lanes{});
#pragma omp barrier
#pragma omp for schedule(static) collapse(2)
        for (int64_t o = 0; o < out_blocks; ++o) {
          for (int64_t c = 0; c < tiling.in_channels(); ++c) {
            Lanes points[kTile][kTile] = {};
            for (int thread = 0; thread < grad.threads; ++thread) {
              const auto part = points_at(sums + thread * own + c * out_blocks + o, s_stride);
#pragma GCC unroll 6
              for (int i = 0; i < kTile; ++i) {
#pragma GCC unroll 6
                for (int j = 0; j < kTile; ++j) points[i][j] += part.at(i, j);
              }
            }
            points_to_filters<kTaps>(tiling, {&points[0][0], kTile, 1}, c, o, at.dw);
          }
        }
        // Threads are added in order: the same number of threads gives the same bits.
#pragma omp for schedule(static)
        for (int64_t o = 0; o < out_blocks; ++o) {
          Lanes sum{};
          for (int thread = 0; thread < grad.threads; ++thread) sum += biases[thread * own + o];
          if (at.db) store_channels(sum, at.db, o, tiling.out.channels);
        }
      }
    };
  };
  return kernel;
}

// --- A panel of output channels and a few input channels at a time, over all tiles at once: sums go straight on to
// the filters they become.

constexpr int64_t kChunkBlocks = 2;  // of input channels

template <int kTaps>
Kernel in_panels(const WeightGradient& grad) {
  constexpr int kOut = kTile + 1 - kTaps;
  const Tiling tiling = grad.tiling;
  const int64_t in_blocks = tiling.in.blocks(), out_blocks = tiling.out.blocks(), tiles = tiling.count();
  const auto runs = std::make_shared<const TileRuns>(tiling, tiles);
  const PackedPanels gradients{out_blocks, tiles};
  const int64_t width = gradients.width(), chunks = (in_blocks + kChunkBlocks - 1) / kChunkBlocks;
  // V[chunk][point][tile][channel], D[panel][point][tile][channel], and of each thread S[point][channel][channel].
  const int64_t v_stride = tiles * kChunkBlocks + 1, d_stride = gradients.panel_stride() + 1;
  const int64_t s_stride = kChunkBlocks * kBlock * width + 1;
  const int64_t v_vectors = chunks * kPoints * v_stride, d_vectors = gradients.panels() * kPoints * d_stride;
  const int64_t own = kPoints * s_stride;
  Kernel kernel{"winograd_panels", static_cast<size_t>(v_vectors + d_vectors + grad.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const Operands at = operands(grad, bind);
    auto* v = static_cast<Lanes*>(bind.scratch);
    auto* d = v + v_vectors;
    auto* sums = d + d_vectors;
    return [=](const StepContext&) {
#pragma omp parallel num_threads(grad.threads)
      {
        const TileRun all = runs->at(0);
        Lanes* s = sums + omp_get_thread_num() * own;
#pragma omp for schedule(static)
        for (int64_t c = 0; c < in_blocks; ++c) {
          Lanes* chunk = v + c / kChunkBlocks * kPoints * v_stride;
          input_to_points<kOut>(tiling, at.x, all, c, chunk + c % kChunkBlocks, kChunkBlocks, v_stride);
        }
#pragma omp for schedule(static)
        for (int64_t o = 0; o < out_blocks; ++o) {
          Lanes* panel = d + o / kProductVectors * kPoints * d_stride;
          const Lanes sum =
              gradient_to_points<kOut>(tiling, at.dy, all, o, panel + o % kProductVectors, width, d_stride);
          if (at.db) store_channels(sum, at.db, o, tiling.out.channels);
        }
#pragma omp for schedule(static) collapse(2)
        for (int64_t panel = 0; panel < gradients.panels(); ++panel) {
          for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t first_o = panel * kProductVectors, count_o = std::min(width, out_blocks - first_o);
            const int64_t first_c = chunk * kChunkBlocks, count_c = std::min(kChunkBlocks, in_blocks - first_c);
            for (int point = 0; point < kPoints; ++point) {
              const Range tiles_with = all.with_point(point);
              const ProductShape product{
                  count_c * kBlock, count_o, tiles_with.count(), 1, kChunkBlocks * kBlock, width, 0, width};
              const Lanes* from = v + (chunk * kPoints + point) * v_stride + tiles_with.first * kChunkBlocks;
              small_product<false>(product, reinterpret_cast<const float*>(from),
                                   d + (panel * kPoints + point) * d_stride + tiles_with.first * width,
                                   s + point * s_stride);
            }
            for (int64_t c = 0; c < count_c * kBlock; ++c) {
              for (int64_t o = 0; o < count_o; ++o) {
                points_to_filters<kTaps>(tiling, points_at(static_cast<const Lanes*>(s + c * width + o), s_stride),
                                         first_c * kBlock + c, first_o + o, at.dw);
              }
            }
          }
        }
      }
    };
  };
  return kernel;
}

template <int kTaps>
std::vector<Kernel> kernels_of(const ConvProblem& problem) {
  const graph::Window& w = problem.attrs.window;
  const WeightGradient grad{{BlockedShape(problem.x), BlockedShape(problem.y), w.pad_h, w.pad_w, kTile + 1 - kTaps},
                            problem.attrs.bias,
                            omp_get_max_threads()};
  std::vector<Kernel> kernels{in_blocks<kTaps>(grad)};
  if (grad.tiling.suits_panels()) kernels.push_back(in_panels<kTaps>(grad));
  return kernels;
}

}  // namespace

std::vector<Kernel> weight_gradient_kernels(const ConvProblem& problem) {
  return problem.attrs.window.kernel_h == 3 ? kernels_of<3>(problem) : kernels_of<5>(problem);
}

}  // namespace millrace::backend::cpu::winograd
