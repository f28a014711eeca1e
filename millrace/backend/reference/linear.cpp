#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, in, out;
  bool relu;
};

template <typename T>
void forward(const Geometry& g, const T* x, const T* w, const T* bias, T* y) {
  for (int64_t n = 0; n < g.rows; ++n) {
    for (int64_t o = 0; o < g.out; ++o) {
      double sum = bias ? bias[o] : 0.0;
      for (int64_t i = 0; i < g.in; ++i) sum += double{x[n * g.in + i]} * w[o * g.in + i];
      y[n * g.out + o] = static_cast<T>(g.relu ? relu(sum) : sum);
    }
  }
}

template <typename T>
void input_grad(const Geometry& g, const T* dy, const T* w, T* dx) {
  for (int64_t n = 0; n < g.rows; ++n) {
    for (int64_t i = 0; i < g.in; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < g.out; ++o) sum += double{dy[n * g.out + o]} * w[o * g.in + i];
      dx[n * g.in + i] = static_cast<T>(sum);
    }
  }
}

template <typename T>
void weight_grad(const Geometry& g, const T* x, const T* dy, T* dw, T* db) {
  for (int64_t o = 0; o < g.out; ++o) {
    for (int64_t i = 0; i < g.in; ++i) {
      double sum = 0;
      for (int64_t n = 0; n < g.rows; ++n) sum += double{x[n * g.in + i]} * dy[n * g.out + o];
      dw[o * g.in + i] = static_cast<T>(sum);
    }
    if (db) {
      double sum = 0;
      for (int64_t n = 0; n < g.rows; ++n) sum += dy[n * g.out + o];
      db[o] = static_cast<T>(sum);
    }
  }
}

}  // namespace

Kernel prepare_linear(const NodeView& view) {
  const bool fused_relu = view.attrs<graph::LinearAttrs>().relu;
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const Geometry g{view.read(0).rows(), view.read(1)[1], view.read(1)[0], fused_relu};
      const bool biased = view.num_reads() > 2;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *w = at.read<T>(1), *bias = biased ? at.read<T>(2) : nullptr;
        T* y = at.write<T>(0);
        return [=](const StepContext&) { forward(g, x, w, bias, y); };
      });
    }
    case graph::Pass::InputGrad: {
      const Geometry g{view.read(0).rows(), view.read(1)[1], view.read(1)[0], fused_relu};
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *dy = at.read<T>(0), *w = at.read<T>(1);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { input_grad(g, dy, w, dx); };
      });
    }
    case graph::Pass::WeightGrad: {
      const Geometry g{view.read(0).rows(), view.write(0)[1], view.write(0)[0], fused_relu};
      const bool biased = view.num_writes() > 1;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *dy = at.read<T>(1);
        T *dw = at.write<T>(0), *db = biased ? at.write<T>(1) : nullptr;
        return [=](const StepContext&) { weight_grad(g, x, dy, dw, db); };
      });
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
