// A row at a time, along the last axis. Statistics take two looks at a row that by then is in the cache: a first mean,
// then the sums of what differs from it - its square for the variance, itself for what rounding left of the mean. Sums
// over rows are kept by blocks of rows, whose size only the shape decides, so a result does not depend on how rows are
// spread over threads.
#include <algorithm>
#include <cmath>

#include "millrace/backend/cpu/kernels.h"
#include "millrace/base/error.h"

namespace millrace::backend::cpu {
namespace {

using graph::Pass;

struct Geometry {
  int64_t rows, width;
  double epsilon;

  // Blocks of rows: some for every thread, few enough to be added quickly.
  int64_t block_rows() const { return std::max<int64_t>(32, (rows + 63) / 64); }
  int64_t blocks() const { return (rows + block_rows() - 1) / block_rows(); }
};

// x - mean is (x - first) - rest: a mean in one float would be too coarse where it is far larger than the deviation.
struct Statistics {
  float first, rest, invstd;
};

Statistics statistics_of(const Geometry& g, const float* x) {
  const auto width = static_cast<double>(g.width);
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t d = 0; d < g.width; ++d) total += x[d];
  const auto first = static_cast<float>(total / width);
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
  for (int64_t d = 0; d < g.width; ++d) {
    const float off = x[d] - first;
    sum += off;
    squares += off * off;
  }
  const double rest = sum / width;
  double variance = squares / width - rest * rest;
  if (variance < 0) variance = 0;
  return {first, static_cast<float>(rest), static_cast<float>(1 / std::sqrt(variance + g.epsilon))};
}

// `saved` is null where nothing is kept for backward.
Task bind_forward(const Geometry& g, bool saves, const Bindings& bind) {
  const auto *x = bind.read<float>(0), *scale = bind.read<float>(1), *shift = bind.read<float>(2);
  auto *y = bind.write<float>(0), *saved = saves ? bind.write<float>(1) : nullptr;
  return [=](const StepContext&) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < g.rows; ++row) {
      const float* from = x + row * g.width;
      float* to = y + row * g.width;
      const auto [first, rest, invstd] = statistics_of(g, from);
#pragma omp simd
      for (int64_t d = 0; d < g.width; ++d) to[d] = ((from[d] - first) - rest) * invstd * scale[d] + shift[d];
      if (!saved) continue;
      saved[row] = first + rest;
      saved[g.rows + row] = invstd;
    }
  };
}

// dx = invstd (g - mean(g) - xhat mean(g xhat)), g being dy scale. Each element is read before it is written: dx may
// lie over dy or x.
Task bind_input_grad(const Geometry& g, const Bindings& bind) {
  const auto *dy = bind.read<float>(0), *x = bind.read<float>(1), *scale = bind.read<float>(2);
  const auto* saved = bind.read<float>(3);
  auto* dx = bind.write<float>(0);
  return [=](const StepContext&) {
    const float share = 1.0f / static_cast<float>(g.width);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < g.rows; ++row) {
      const float *dy_row = dy + row * g.width, *x_row = x + row * g.width;
      float* dx_row = dx + row * g.width;
      const float mean = saved[row], invstd = saved[g.rows + row];
      float sum = 0, slope = 0;
#pragma omp simd reduction(+ : sum, slope)
      for (int64_t d = 0; d < g.width; ++d) {
        const float gradient = dy_row[d] * scale[d];
        sum += gradient;
        slope += gradient * (x_row[d] - mean);
      }
      const float offset = sum * share, factor = slope * invstd * invstd * share;
#pragma omp simd
      for (int64_t d = 0; d < g.width; ++d) {
        dx_row[d] = invstd * (dy_row[d] * scale[d] - offset - (x_row[d] - mean) * factor);
      }
    }
  };
}

// Scratch: for each block of rows its part of dscale, then of dshift.
size_t scratch_bytes(const Geometry& g) { return static_cast<size_t>(g.blocks() * 2 * g.width) * sizeof(float); }

constexpr int64_t kColumns = 64;

// The sum over blocks of kColumns columns, in the order of the blocks.
void add_blocks(const Geometry& g, const float* parts, int64_t first, float* to) {
  const int64_t columns = std::min(kColumns, g.width - first);
  double totals[kColumns] = {};
  for (int64_t block = 0; block < g.blocks(); ++block) {
    for (int64_t d = 0; d < columns; ++d) totals[d] += parts[block * 2 * g.width + first + d];
  }
  for (int64_t d = 0; d < columns; ++d) to[first + d] = static_cast<float>(totals[d]);
}

Task bind_weight_grad(const Geometry& g, const Bindings& bind) {
  const auto *dy = bind.read<float>(0), *x = bind.read<float>(1), *saved = bind.read<float>(2);
  auto *dscale = bind.write<float>(0), *dshift = bind.write<float>(1);
  auto* parts = static_cast<float*>(bind.scratch);
  return [=](const StepContext&) {
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t block = 0; block < g.blocks(); ++block) {
        float *scale_part = parts + block * 2 * g.width, *shift_part = scale_part + g.width;
        std::fill(scale_part, scale_part + 2 * g.width, 0.0f);
        const int64_t begin = block * g.block_rows(), end = std::min(begin + g.block_rows(), g.rows);
        for (int64_t row = begin; row < end; ++row) {
          const float *dy_row = dy + row * g.width, *x_row = x + row * g.width;
          const float mean = saved[row], invstd = saved[g.rows + row];
#pragma omp simd
          for (int64_t d = 0; d < g.width; ++d) {
            scale_part[d] += dy_row[d] * ((x_row[d] - mean) * invstd);
            shift_part[d] += dy_row[d];
          }
        }
      }
#pragma omp for schedule(static)
      for (int64_t first = 0; first < g.width; first += kColumns) {
        add_blocks(g, parts, first, dscale);
        add_blocks(g, parts + g.width, first, dshift);
      }
    }
  };
}

}  // namespace

Kernel prepare_layer_norm(const NodeView& view) {
  const Shape& shape = view.read(0);  // x, or dy which has its shape
  // Four axes lie in blocks of channels, in which the last axis is no row.
  if (shape.rank() == 4) fail_input("{}: layer norm takes N x D or N x L x D, not {}", view.node.name, shape.str());
  const Geometry g{shape.rows(), shape.width(), view.attrs<graph::LayerNormAttrs>().epsilon};
  const bool saves = view.num_writes() > 1;
  switch (view.node.pass) {
    case Pass::InputGrad: return {"row", 0, [=](const Bindings& bind) { return bind_input_grad(g, bind); }};
    case Pass::WeightGrad:
      return {"blocks of rows", scratch_bytes(g), [=](const Bindings& bind) { return bind_weight_grad(g, bind); }};
    default: return {"row", 0, [=](const Bindings& bind) { return bind_forward(g, saves, bind); }};
  }
}

}  // namespace millrace::backend::cpu
