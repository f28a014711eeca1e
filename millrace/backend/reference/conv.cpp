// Each loop nest is written from the side of its result, so that every element is one sum.
#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  Nchw x, y, w;  // w: O x I/groups x KH x KW
  graph::Window window;
  int groups;
  bool relu;

  int64_t out_per_group() const { return w.n / groups; }
  int64_t in_per_group() const { return w.c; }
  // Input row and column under window cell (kh, kw) of output (oh, ow).
  int64_t in_h(int64_t oh, int64_t kh) const {
    return window_position(oh, kh, window.stride_h, window.pad_h, window.dilation_h);
  }
  int64_t in_w(int64_t ow, int64_t kw) const {
    return window_position(ow, kw, window.stride_w, window.pad_w, window.dilation_w);
  }
};

Geometry geometry(const NodeView& view, const Shape& x, const Shape& y, const Shape& w) {
  const auto& attrs = view.attrs<graph::Conv2dAttrs>();
  return {Nchw(x), Nchw(y), Nchw(w), attrs.window, attrs.groups, attrs.relu};
}

template <typename T>
void forward(const Geometry& g, const T* x, const T* w, const T* bias, T* y) {
  for (int64_t n = 0; n < g.y.n; ++n) {
    for (int64_t o = 0; o < g.y.c; ++o) {
      const int64_t first_in = o / g.out_per_group() * g.in_per_group();
      for (int64_t oh = 0; oh < g.y.h; ++oh) {
        for (int64_t ow = 0; ow < g.y.w; ++ow) {
          double sum = bias ? bias[o] : 0.0;
          for (int64_t i = 0; i < g.in_per_group(); ++i) {
            for (int64_t kh = 0; kh < g.w.h; ++kh) {
              for (int64_t kw = 0; kw < g.w.w; ++kw) {
                const int64_t ih = g.in_h(oh, kh), iw = g.in_w(ow, kw);
                if (!g.x.inside(ih, iw)) continue;
                sum += double{x[g.x.at(n, first_in + i, ih, iw)]} * w[g.w.at(o, i, kh, kw)];
              }
            }
          }
          y[g.y.at(n, o, oh, ow)] = static_cast<T>(g.relu ? relu(sum) : sum);
        }
      }
    }
  }
}

// The output index whose window cell at `offset` (= k * dilation - pad) lies on input `in`, or -1.
int64_t output_over(int64_t in, int64_t offset, int stride, int64_t extent) {
  const int64_t scaled = in - offset;
  return scaled >= 0 && scaled % stride == 0 && scaled / stride < extent ? scaled / stride : -1;
}

template <typename T>
void input_grad(const Geometry& g, const T* dy, const T* w, T* dx) {
  for (int64_t n = 0; n < g.x.n; ++n) {
    for (int64_t c = 0; c < g.x.c; ++c) {
      const int64_t group = c / g.in_per_group(), i = c % g.in_per_group();
      for (int64_t ih = 0; ih < g.x.h; ++ih) {
        for (int64_t iw = 0; iw < g.x.w; ++iw) {
          double sum = 0;
          for (int64_t kh = 0; kh < g.w.h; ++kh) {
            const int64_t oh = output_over(ih, g.in_h(0, kh), g.window.stride_h, g.y.h);
            if (oh < 0) continue;
            for (int64_t kw = 0; kw < g.w.w; ++kw) {
              const int64_t ow = output_over(iw, g.in_w(0, kw), g.window.stride_w, g.y.w);
              if (ow < 0) continue;
              for (int64_t o = group * g.out_per_group(); o < (group + 1) * g.out_per_group(); ++o) {
                sum += double{dy[g.y.at(n, o, oh, ow)]} * w[g.w.at(o, i, kh, kw)];
              }
            }
          }
          dx[g.x.at(n, c, ih, iw)] = static_cast<T>(sum);
        }
      }
    }
  }
}

template <typename T>
void weight_grad(const Geometry& g, const T* x, const T* dy, T* dw) {
  for (int64_t o = 0; o < g.w.n; ++o) {
    const int64_t first_in = o / g.out_per_group() * g.in_per_group();
    for (int64_t i = 0; i < g.in_per_group(); ++i) {
      for (int64_t kh = 0; kh < g.w.h; ++kh) {
        for (int64_t kw = 0; kw < g.w.w; ++kw) {
          double sum = 0;
          for (int64_t n = 0; n < g.y.n; ++n) {
            for (int64_t oh = 0; oh < g.y.h; ++oh) {
              for (int64_t ow = 0; ow < g.y.w; ++ow) {
                const int64_t ih = g.in_h(oh, kh), iw = g.in_w(ow, kw);
                if (!g.x.inside(ih, iw)) continue;
                sum += double{x[g.x.at(n, first_in + i, ih, iw)]} * dy[g.y.at(n, o, oh, ow)];
              }
            }
          }
          dw[g.w.at(o, i, kh, kw)] = static_cast<T>(sum);
        }
      }
    }
  }
}

template <typename T>
void bias_grad(const Nchw& shape, const T* dy, T* db) {
  for (int64_t o = 0; o < shape.c; ++o) {
    double sum = 0;
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.h * shape.w; ++i) sum += dy[shape.at(n, o, 0, 0) + i];
    }
    db[o] = static_cast<T>(sum);
  }
}

// Of each channel: its sum, then behind those of all channels the sum of its squares.
template <typename T>
void output_sums(const Nchw& shape, const T* y, T* sums) {
  for (int64_t o = 0; o < shape.c; ++o) {
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.h * shape.w; ++i) {
        const double value = y[shape.at(n, o, 0, 0) + i];
        sum += value;
        squares += value * value;
      }
    }
    sums[o] = static_cast<T>(sum);
    sums[shape.c + o] = static_cast<T>(squares);
  }
}

}  // namespace

Kernel prepare_conv(const NodeView& view) {
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const Geometry g = geometry(view, view.read(0), view.write(0), view.read(1));
      const bool biased = view.num_reads() > 2, summed = view.num_writes() > 1;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *w = at.read<T>(1), *bias = biased ? at.read<T>(2) : nullptr;
        T *y = at.write<T>(0), *sums = summed ? at.write<T>(1) : nullptr;
        return [=](const StepContext&) {
          forward(g, x, w, bias, y);
          if (sums) output_sums(g.y, y, sums);
        };
      });
    }
    case graph::Pass::InputGrad: {
      const Geometry g = geometry(view, view.write(0), view.read(0), view.read(1));
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *dy = at.read<T>(0), *w = at.read<T>(1);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { input_grad(g, dy, w, dx); };
      });
    }
    case graph::Pass::WeightGrad: {
      const Geometry g = geometry(view, view.read(0), view.read(1), view.write(0));
      const bool biased = view.num_writes() > 1;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *dy = at.read<T>(1);
        T *dw = at.write<T>(0), *db = biased ? at.write<T>(1) : nullptr;
        return [=](const StepContext&) {
          weight_grad(g, x, dy, dw);
          if (db) bias_grad(g.y, dy, db);
        };
      });
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
