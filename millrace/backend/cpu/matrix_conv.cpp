#include "millrace/backend/cpu/matrix_conv.h"

namespace millrace::backend::cpu {
namespace matrix_conv {

// Calls visit_pixel(index, place in x) for the rows whose pixel lies within x.
template <typename Visit>
void Taps::visit(int64_t n, int64_t block, int64_t first, int64_t rows, const Visit& visit_pixel) const {
  const int64_t tap = block % count();
  const int64_t down = tap / window.kernel_w * window.dilation_h - window.pad_h;
  const int64_t right = tap % window.kernel_w * window.dilation_w - window.pad_w;
  const int64_t plane = x.plane(n, block / count()), last = std::min(rows, y.pixels() - first);
  // Columns of y whose pixel is a column of x.
  const int64_t begin = right < 0 ? (-right + window.stride_w - 1) / window.stride_w : 0;
  const int64_t end = right < x.width ? (x.width - 1 - right) / window.stride_w + 1 : 0;
  int64_t row = first / y.width, column = first % y.width;
  for (int64_t i = 0; i < last; ++row, column = 0) {
    const int64_t h = row * window.stride_h + down, here = std::min(last - i, y.width - column);
    if (h >= 0 && h < x.height) {
      const int64_t from = std::max(column, begin), to = std::min(column + here, end);
      const int64_t line = plane + h * x.width + right;
      for (int64_t j = from; j < to; ++j) visit_pixel(i + j - column, line + j * window.stride_w);
    }
    i += here;
  }
}

void Taps::gather(const Lanes* from, int64_t n, int64_t block, int64_t first, int64_t rows, Lanes* to) const {
  const bool all_inside = count() == 1 && first + rows <= y.pixels();
  if (!all_inside) std::fill_n(to, rows, Lanes{});
  visit(n, block, first, rows, [&](int64_t i, int64_t place) { to[i] = from[place]; });
}

void Taps::scatter(const Lanes* from, int64_t n, int64_t block, int64_t first, int64_t rows, Lanes* to) const {
  visit(n, block, first, rows, [&](int64_t i, int64_t place) { to[place] += from[i]; });
}

}  // namespace matrix_conv

std::vector<Kernel> matrix_conv_kernels(const ConvProblem& problem, const Desc& weight) {
  const graph::Window& w = problem.attrs.window;
  if (problem.attrs.groups != 1 || problem.attrs.bias || problem.relu) return {};
  const bool steps = w.stride_h > 1 || w.stride_w > 1, one = w.kernel_h == 1 && w.kernel_w == 1;
  // With padding a 1 x 1 filter has pixels that read nothing.
  if (!(one ? w.pad_h == 0 && w.pad_w == 0 : steps)) return {};
  if (!has_own_layout(weight)) return {};
  const matrix_conv::Taps taps{BlockedShape(problem.x), BlockedShape(problem.y), w};
  switch (problem.pass) {
    case graph::Pass::InputGrad: return matrix_conv::input_gradient_kernels(taps);
    case graph::Pass::WeightGrad: return matrix_conv::weight_gradient_kernels(taps);
    default: return matrix_conv::forward_kernels(taps);
  }
}

}  // namespace millrace::backend::cpu
