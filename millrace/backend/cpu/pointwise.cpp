#include "millrace/backend/cpu/pointwise.h"

#include <algorithm>

namespace millrace::backend::cpu {
namespace pointwise {

void gather(const Grid& grid, const Lanes* plane, int64_t first, int64_t count, Lanes* to) {
  const int64_t there = std::clamp<int64_t>(grid.pixels() - first, 0, count);
  if (grid.whole()) {
    std::copy_n(plane + first, there, to);
  } else {
    int64_t row = first / grid.columns, column = first % grid.columns;
    for (int64_t i = 0; i < there; ++i) {
      to[i] = plane[row * grid.stride_h * grid.width + column * grid.stride_w];
      if (++column == grid.columns) {
        column = 0;
        ++row;
      }
    }
  }
  std::fill(to + there, to + count, Lanes{});
}

void scatter(const Grid& grid, const Lanes* from, int64_t first, int64_t count, Lanes* plane) {
  const int64_t there = std::clamp<int64_t>(grid.pixels() - first, 0, count);
  if (grid.whole()) {
    std::copy_n(from, there, plane + first);
    return;
  }
  int64_t row = first / grid.columns, column = first % grid.columns;
  for (int64_t i = 0; i < there; ++i) {
    const int64_t top = row * grid.stride_h, left = column * grid.stride_w;
    const int64_t bottom = std::min(top + grid.stride_h, grid.height);
    const int64_t right = std::min(left + grid.stride_w, grid.width);
    for (int64_t y = top; y < bottom; ++y) {
      for (int64_t x = left; x < right; ++x) plane[y * grid.width + x] = y == top && x == left ? from[i] : Lanes{};
    }
    if (++column == grid.columns) {
      column = 0;
      ++row;
    }
  }
}

}  // namespace pointwise

std::vector<Kernel> pointwise_kernels(const PointwiseProblem& problem, const Desc& weight) {
  const graph::Window& w = problem.attrs.window;
  if (w.kernel_h != 1 || w.kernel_w != 1 || w.pad_h != 0 || w.pad_w != 0) return {};
  if (problem.attrs.groups != 1 || problem.attrs.bias || problem.relu) return {};
  const Tag tag = kBlock == 16 ? Tag::OIhw16i16o : Tag::OIhw8i8o;
  if (weight != Desc(weight.dims(), dnnl::memory::data_type::f32, tag)) return {};
  if (problem.pass == graph::Pass::WeightGrad) return pointwise::weight_gradient_kernels(problem);
  return pointwise::convolution_kernels(problem, problem.pass == graph::Pass::InputGrad);
}

}  // namespace millrace::backend::cpu
