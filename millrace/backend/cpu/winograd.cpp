#include "millrace/backend/cpu/winograd.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/small_product.h"
#include "millrace/backend/cpu/winograd_transform.h"

namespace millrace::backend::cpu {
namespace {

using graph::Pass;
using winograd::kPoints;
using winograd::kTile;

// One convolution from `in` to `out`: forward from x to y, or backward from dy to dx with turned filters.
struct Plan {
  BlockedShape in, out;
  int64_t pad_h, pad_w;      // of `in`
  int64_t tiles_h, tiles_w;  // over `out`
  int64_t block_tiles;       // tiles transformed together, a multiple of kProductRows
  int64_t num_blocks;
  int threads;

  int64_t tiles() const { return out.batch * tiles_h * tiles_w; }
  int64_t in_channels() const { return in.blocks() * kBlock; }
  int64_t out_channels() const { return out.blocks() * kBlock; }

  // From one of the 36 points to the next, in vectors: transformed input tiles, transformed output tiles, filters.
  // One more than they take: at a distance of a power of two all points of a tile would fall into one cache set.
  int64_t in_stride() const { return block_tiles * in.blocks() + 1; }
  int64_t out_stride() const { return block_tiles * out.blocks() + 1; }
  int64_t filter_stride() const { return in_channels() * out.blocks() + 1; }
};

// How many tiles a block has: as many as keep its transformed tiles in a core's share of the caches. Filters too large
// for the last cache are read again for every block, which then had better be large.
int64_t most_tiles(const Plan& plan) {
  constexpr int64_t kFloat = sizeof(float), kMiB = 1 << 20;
  const int64_t filter_bytes = kPoints * plan.in_channels() * plan.out_channels() * kFloat;
  const int64_t cached_bytes = filter_bytes > 16 * kMiB ? 16 * kMiB : 2 * kMiB;
  const int64_t tile_bytes = kPoints * (plan.in_channels() + plan.out_channels()) * kFloat;
  return std::clamp<int64_t>(cached_bytes / tile_bytes, 4 * kProductRows, 64 * kProductRows);
}

Plan make_plan(const Shape& in, const Shape& out, int64_t pad_h, int64_t pad_w, int outputs) {
  Plan plan{BlockedShape(in), BlockedShape(out), pad_h, pad_w, 0, 0, 0, 0, omp_get_max_threads()};
  plan.tiles_h = (plan.out.height + outputs - 1) / outputs;
  plan.tiles_w = (plan.out.width + outputs - 1) / outputs;
  // As many blocks as share out evenly over the threads.
  const int64_t most = most_tiles(plan), blocks = (plan.tiles() + most - 1) / most;
  plan.num_blocks = (blocks + plan.threads - 1) / plan.threads * plan.threads;
  const int64_t even = (plan.tiles() + plan.num_blocks - 1) / plan.num_blocks;
  plan.block_tiles = (even + kProductRows - 1) / kProductRows * kProductRows;
  return plan;
}

struct TilePlace {
  int64_t n, row, column;  // sample, and the first output
};
TilePlace place_of(const Plan& plan, int64_t tile, int outputs) {
  const int64_t per_image = plan.tiles_h * plan.tiles_w, within = tile % per_image;
  return {tile / per_image, within / plan.tiles_w * outputs, within % plan.tiles_w * outputs};
}

// A square of kSize pixels; what lies outside the plane is zero.
template <int kSize>
inline void load_square(const Lanes* plane, int64_t height, int64_t width, int64_t row, int64_t column,
                        Lanes (&square)[kSize][kSize]) {
  if (row >= 0 && column >= 0 && row + kSize <= height && column + kSize <= width) {
    for (int i = 0; i < kSize; ++i) {
      for (int j = 0; j < kSize; ++j) square[i][j] = plane[(row + i) * width + column + j];
    }
    return;
  }
  for (int i = 0; i < kSize; ++i) {
    const bool inside_row = row + i >= 0 && row + i < height;
    for (int j = 0; j < kSize; ++j) {
      const bool inside = inside_row && column + j >= 0 && column + j < width;
      square[i][j] = inside ? plane[(row + i) * width + column + j] : Lanes{};
    }
  }
}

inline void store_points(const Lanes (&points)[kTile][kTile], Lanes* to, int64_t stride) {
  for (int i = 0; i < kTile; ++i) {
    for (int j = 0; j < kTile; ++j) to[(i * kTile + j) * stride] = points[i][j];
  }
}
inline void load_points(const Lanes* from, int64_t stride, Lanes (&points)[kTile][kTile]) {
  for (int i = 0; i < kTile; ++i) {
    for (int j = 0; j < kTile; ++j) points[i][j] = from[(i * kTile + j) * stride];
  }
}

// Transforms the input tiles of a block into V[point][tile][channel]; tiles past the last are zero.
void transform_input(const Plan& plan, int64_t first, const Lanes* in, Lanes* v, int outputs) {
  const int64_t channel_blocks = plan.in.blocks(), stride = plan.in_stride();
  for (int64_t t = 0; t < plan.block_tiles; ++t) {
    const bool exists = first + t < plan.tiles();
    const TilePlace at = exists ? place_of(plan, first + t, outputs) : TilePlace{};
    for (int64_t block = 0; block < channel_blocks; ++block) {
      Lanes square[kTile][kTile] = {}, points[kTile][kTile];
      if (exists) {
        load_square(in + plan.in.plane(at.n, block), plan.in.height, plan.in.width, at.row - plan.pad_h,
                    at.column - plan.pad_w, square);
      }
      winograd::input_2d(square, points);
      store_points(points, v + t * channel_blocks + block, stride);
    }
  }
}

template <int kOut>
void transform_output(const Plan& plan, int64_t first, const Lanes* m, const float* bias, bool relu_after, Lanes* out) {
  const int64_t channel_blocks = plan.out.blocks(), stride = plan.out_stride();
  for (int64_t t = 0; t < plan.block_tiles && first + t < plan.tiles(); ++t) {
    const TilePlace at = place_of(plan, first + t, kOut);
    const int64_t rows = std::min<int64_t>(kOut, plan.out.height - at.row);
    const int64_t columns = std::min<int64_t>(kOut, plan.out.width - at.column);
    for (int64_t block = 0; block < channel_blocks; ++block) {
      Lanes points[kTile][kTile], values[kOut][kOut];
      load_points(m + t * channel_blocks + block, stride, points);
      winograd::output_2d<kOut>(points, values);
      const Lanes offset = bias ? load_channels(bias, block, plan.out.channels) : Lanes{};
      Lanes* plane = out + plan.out.plane(at.n, block);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          const Lanes value = values[i][j] + offset;
          plane[(at.row + i) * plan.out.width + at.column + j] = relu_after ? relu(value) : value;
        }
      }
    }
  }
}

// U[point][input channel][output channel] of the filters as they are stored, w[o block][i block][r][r][i][o].
template <int kTaps>
void transform_filters(const Plan& plan, const float* w, Lanes* u) {
  const int64_t in_blocks = plan.in.blocks(), out_blocks = plan.out.blocks();
  const int64_t stride = plan.filter_stride();
#pragma omp for schedule(static) collapse(2)
  for (int64_t o = 0; o < out_blocks; ++o) {
    for (int64_t c = 0; c < plan.in_channels(); ++c) {
      const float* filter = w + (o * in_blocks + c / kBlock) * kTaps * kTaps * kBlock * kBlock + c % kBlock * kBlock;
      Lanes taps[kTaps][kTaps], points[kTile][kTile];
      for (int i = 0; i < kTaps; ++i) {
        for (int j = 0; j < kTaps; ++j) {
          taps[i][j] = *reinterpret_cast<const Lanes*>(filter + (i * kTaps + j) * kBlock * kBlock);
        }
      }
      winograd::filter_2d<kTaps>(taps, points);
      store_points(points, u + c * out_blocks + o, stride);
    }
  }
}

// The same for the way back: filters turned by 180 degrees, channels exchanged. Here `in` is dy and `out` is dx.
template <int kTaps>
void transform_turned_filters(const Plan& plan, const float* w, Lanes* u) {
  const int64_t in_blocks = plan.in.blocks(), out_blocks = plan.out.blocks();
  const int64_t stride = plan.filter_stride();
#pragma omp for schedule(static) collapse(2)
  for (int64_t o = 0; o < in_blocks; ++o) {
    for (int64_t c = 0; c < out_blocks; ++c) {
      const float* filters = w + (o * out_blocks + c) * kTaps * kTaps * kBlock * kBlock;
      for (int lane = 0; lane < kBlock; ++lane) {
        Lanes taps[kTaps][kTaps], points[kTile][kTile];
        for (int i = 0; i < kTaps; ++i) {
          for (int j = 0; j < kTaps; ++j) {
            const float* tap = filters + ((kTaps - 1 - i) * kTaps + kTaps - 1 - j) * kBlock * kBlock + lane;
            for (int k = 0; k < kBlock; ++k) taps[i][j][k] = tap[k * kBlock];
          }
        }
        winograd::filter_2d<kTaps>(taps, points);
        store_points(points, u + (o * kBlock + lane) * out_blocks + c, stride);
      }
    }
  }
}

// Forward and input gradient.
template <int kTaps>
Kernel convolve(const Plan& plan, bool turned, bool bias, bool relu_after) {
  constexpr int kOut = kTile + 1 - kTaps;
  const int64_t u_vectors = kPoints * plan.filter_stride();
  const int64_t v_vectors = kPoints * plan.in_stride();
  const int64_t m_vectors = kPoints * plan.out_stride();
  Kernel kernel{
      "winograd_blocks", static_cast<size_t>(u_vectors + plan.threads * (v_vectors + m_vectors)) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* in = bind.read<Lanes>(0);
    const auto* w = bind.read<float>(1);
    const auto* b = bias ? bind.read<float>(2) : nullptr;
    auto* out = bind.write<Lanes>(0);
    auto* u = static_cast<Lanes*>(bind.scratch);
    const ProductShape product{plan.block_tiles,  plan.out.blocks(), plan.in_channels(), plan.in_channels(), 1,
                               plan.out.blocks(), plan.out.blocks()};
    return [=](const StepContext&) {
#pragma omp parallel num_threads(plan.threads)
      {
        Lanes* v = u + u_vectors + omp_get_thread_num() * (v_vectors + m_vectors);
        Lanes* m = v + v_vectors;
        if (turned) {
          transform_turned_filters<kTaps>(plan, w, u);
        } else {
          transform_filters<kTaps>(plan, w, u);
        }
#pragma omp for schedule(static)
        for (int64_t block = 0; block < plan.num_blocks; ++block) {
          const int64_t first = block * plan.block_tiles;
          if (first >= plan.tiles()) continue;
          transform_input(plan, first, in, v, kOut);
          for (int point = 0; point < kPoints; ++point) {
            small_product<false>(product, reinterpret_cast<const float*>(v + point * plan.in_stride()),
                                 u + point * plan.filter_stride(), m + point * plan.out_stride());
          }
          transform_output<kOut>(plan, first, m, b, relu_after, out);
        }
      }
    };
  };
  return kernel;
}

// Transforms the tiles of dy, as filters of kOut taps, into D[point][tile][channel], and adds them up for the bias.
template <int kOut>
void transform_gradient(const Plan& plan, int64_t first, const Lanes* dy, Lanes* d, Lanes* bias_sums) {
  const int64_t channel_blocks = plan.out.blocks(), stride = plan.out_stride();
  for (int64_t t = 0; t < plan.block_tiles; ++t) {
    const bool exists = first + t < plan.tiles();
    const TilePlace at = exists ? place_of(plan, first + t, kOut) : TilePlace{};
    for (int64_t block = 0; block < channel_blocks; ++block) {
      Lanes square[kOut][kOut] = {}, points[kTile][kTile];
      if (exists) {
        load_square(dy + plan.out.plane(at.n, block), plan.out.height, plan.out.width, at.row, at.column, square);
        Lanes sum{};
        for (const auto& row : square) {
          for (const Lanes& value : row) sum += value;
        }
        bias_sums[block] += sum;
      }
      winograd::filter_2d<kOut>(square, points);
      store_points(points, d + t * channel_blocks + block, stride);
    }
  }
}

template <int kTaps>
Kernel weight_gradient(const Plan& plan, bool bias) {
  constexpr int kOut = kTile + 1 - kTaps;
  const int64_t out_blocks = plan.out.blocks();
  const int64_t v_vectors = kPoints * plan.in_stride();
  const int64_t d_vectors = kPoints * plan.out_stride();
  const int64_t s_vectors = kPoints * plan.filter_stride();  // S[point][input channel][output channel]
  const int64_t own = v_vectors + d_vectors + s_vectors + out_blocks;
  Kernel kernel{"winograd_blocks", static_cast<size_t>(plan.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* x = bind.read<Lanes>(0);
    const auto* dy = bind.read<Lanes>(1);
    auto* dw = bind.write<float>(0);
    auto* db = bias ? bind.write<float>(1) : nullptr;
    auto* scratch = static_cast<Lanes*>(bind.scratch);
    const ProductShape product{plan.in_channels(), out_blocks, plan.block_tiles, 1,
                               plan.in_channels(), out_blocks, out_blocks};
    return [=](const StepContext&) {
#pragma omp parallel num_threads(plan.threads)
      {
        Lanes* v = scratch + omp_get_thread_num() * own;
        Lanes* d = v + v_vectors;
        Lanes* s = d + d_vectors;
        Lanes* bias_sums = s + s_vectors;
        std::fill(s, bias_sums + out_blocks, Lanes{});
#pragma omp for schedule(static)
        for (int64_t block = 0; block < plan.num_blocks; ++block) {
          const int64_t first = block * plan.block_tiles;
          if (first >= plan.tiles()) continue;
          transform_input(plan, first, x, v, kOut);
          transform_gradient<kOut>(plan, first, dy, d, bias_sums);
          for (int point = 0; point < kPoints; ++point) {
            small_product<true>(product, reinterpret_cast<const float*>(v + point * plan.in_stride()),
                                d + point * plan.out_stride(), s + point * plan.filter_stride());
          }
        }
        // Threads are added in order: the same number of threads gives the same bits.
#pragma omp for schedule(static) collapse(2)
        for (int64_t o = 0; o < out_blocks; ++o) {
          for (int64_t c = 0; c < plan.in_channels(); ++c) {
            Lanes points[kTile][kTile] = {}, taps[kTaps][kTaps];
            for (int thread = 0; thread < plan.threads; ++thread) {
              Lanes part[kTile][kTile];
              load_points(scratch + thread * own + v_vectors + d_vectors + c * out_blocks + o, plan.filter_stride(),
                          part);
              for (int i = 0; i < kTile; ++i) {
                for (int j = 0; j < kTile; ++j) points[i][j] += part[i][j];
              }
            }
            winograd::output_2d<kTaps>(points, taps);
            float* filter =
                dw + (o * plan.in.blocks() + c / kBlock) * kTaps * kTaps * kBlock * kBlock + c % kBlock * kBlock;
            for (int i = 0; i < kTaps; ++i) {
              for (int j = 0; j < kTaps; ++j) {
                *reinterpret_cast<Lanes*>(filter + (i * kTaps + j) * kBlock * kBlock) = taps[i][j];
              }
            }
          }
        }
        if (db) {
#pragma omp for schedule(static)
          for (int64_t o = 0; o < out_blocks; ++o) {
            Lanes sum{};
            for (int thread = 0; thread < plan.threads; ++thread) {
              sum += scratch[thread * own + v_vectors + d_vectors + s_vectors + o];
            }
            store_channels(sum, db, o, plan.out.channels);
          }
        }
      }
    };
  };
  return kernel;
}

template <int kTaps>
Kernel prepare(const WinogradProblem& problem) {
  constexpr int kOut = kTile + 1 - kTaps;
  const graph::Window& w = problem.attrs.window;
  switch (problem.pass) {
    case Pass::InputGrad:
      return convolve<kTaps>(make_plan(problem.y, problem.x, kTaps - 1 - w.pad_h, kTaps - 1 - w.pad_w, kOut), true,
                             false, false);
    case Pass::WeightGrad:
      return weight_gradient<kTaps>(make_plan(problem.x, problem.y, w.pad_h, w.pad_w, kOut), problem.attrs.bias);
    default:
      return convolve<kTaps>(make_plan(problem.x, problem.y, w.pad_h, w.pad_w, kOut), false, problem.attrs.bias,
                             problem.relu);
  }
}

}  // namespace

std::optional<Kernel> winograd_kernel(const WinogradProblem& problem, const Desc& weight) {
  const graph::Window& w = problem.attrs.window;
  const bool plain_steps = w.stride_h == 1 && w.stride_w == 1 && w.dilation_h == 1 && w.dilation_w == 1;
  if (!plain_steps || problem.attrs.groups != 1 || w.kernel_h != w.kernel_w) return std::nullopt;
  if (w.pad_h >= w.kernel_h || w.pad_w >= w.kernel_w) return std::nullopt;
  const Tag tag = kBlock == 16 ? Tag::OIhw16i16o : Tag::OIhw8i8o;
  if (weight != Desc(weight.dims(), dnnl::memory::data_type::f32, tag)) return std::nullopt;
  if (w.kernel_h == 3) return prepare<3>(problem);
  if (w.kernel_h == 5) return prepare<5>(problem);
  return std::nullopt;
}

}  // namespace millrace::backend::cpu
