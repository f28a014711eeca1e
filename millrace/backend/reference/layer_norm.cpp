// Each row, along the last axis, less its mean and over its standard deviation (biased: the sum of squares over the
// width), then scaled and shifted per column.
#include <cmath>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, width;
  double epsilon;
};

// `saved` is null where nothing is kept for backward.
template <typename T>
void forward(const Geometry& g, const T* x, const T* scale, const T* shift, T* y, T* saved) {
  const auto width = static_cast<double>(g.width);
  for (int64_t row = 0; row < g.rows; ++row) {
    const T* from = x + row * g.width;
    T* to = y + row * g.width;
    double mean = 0, squares = 0;
    for (int64_t d = 0; d < g.width; ++d) mean += from[d];
    mean /= width;
    for (int64_t d = 0; d < g.width; ++d) squares += (from[d] - mean) * (from[d] - mean);
    const double invstd = 1 / std::sqrt(squares / width + g.epsilon);
    for (int64_t d = 0; d < g.width; ++d) to[d] = static_cast<T>(scale[d] * (from[d] - mean) * invstd + shift[d]);
    if (!saved) continue;
    saved[row] = static_cast<T>(mean);
    saved[g.rows + row] = static_cast<T>(invstd);
  }
}

// dx = invstd (g - mean(g) - xhat mean(g xhat)), g being dy scale. Each element is read before it is written: dx may
// lie over dy or x.
template <typename T>
void input_grad(const Geometry& g, const T* dy, const T* x, const T* scale, const T* saved, T* dx) {
  const auto width = static_cast<double>(g.width);
  for (int64_t row = 0; row < g.rows; ++row) {
    const double mean = saved[row], invstd = saved[g.rows + row];
    const int64_t begin = row * g.width;
    double sum = 0, slope = 0;
    for (int64_t d = 0; d < g.width; ++d) {
      const double gradient = static_cast<double>(dy[begin + d]) * scale[d];
      sum += gradient;
      slope += gradient * (x[begin + d] - mean) * invstd;
    }
    for (int64_t d = 0; d < g.width; ++d) {
      const double gradient = static_cast<double>(dy[begin + d]) * scale[d];
      const double normalised = (x[begin + d] - mean) * invstd;
      dx[begin + d] = static_cast<T>(invstd * (gradient - sum / width - normalised * slope / width));
    }
  }
}

template <typename T>
void weight_grad(const Geometry& g, const T* dy, const T* x, const T* saved, T* dscale, T* dshift) {
  for (int64_t d = 0; d < g.width; ++d) {
    double scale = 0, shift = 0;
    for (int64_t row = 0; row < g.rows; ++row) {
      const double gradient = dy[row * g.width + d];
      scale += gradient * (x[row * g.width + d] - static_cast<double>(saved[row])) * saved[g.rows + row];
      shift += gradient;
    }
    dscale[d] = static_cast<T>(scale);
    dshift[d] = static_cast<T>(shift);
  }
}

}  // namespace

Kernel prepare_layer_norm(const NodeView& view) {
  const Shape& shape = view.read(0);  // x, or dy which has its shape
  const Geometry g{shape.rows(), shape.width(), view.attrs<graph::LayerNormAttrs>().epsilon};
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const bool saves = view.num_writes() > 1;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *scale = at.read<T>(1), *shift = at.read<T>(2);
        T *y = at.write<T>(0), *saved = saves ? at.write<T>(1) : nullptr;
        return [=](const StepContext&) { forward(g, x, scale, shift, y, saved); };
      });
    }
    case graph::Pass::InputGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *dy = at.read<T>(0), *x = at.read<T>(1), *scale = at.read<T>(2), *saved = at.read<T>(3);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { input_grad(g, dy, x, scale, saved, dx); };
      });
    case graph::Pass::WeightGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *dy = at.read<T>(0), *x = at.read<T>(1), *saved = at.read<T>(2);
        T *dscale = at.write<T>(0), *dshift = at.write<T>(1);
        return [=](const StepContext&) { weight_grad(g, dy, x, saved, dscale, dshift); };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
