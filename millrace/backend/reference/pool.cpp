#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  Nchw x, y;
  graph::Window window;
  bool count_pad, relu;

  // Input row and column under window cell (kh, kw) of output (oh, ow).
  int64_t in_h(int64_t oh, int64_t kh) const {
    return window_position(oh, kh, window.stride_h, window.pad_h, window.dilation_h);
  }
  int64_t in_w(int64_t ow, int64_t kw) const {
    return window_position(ow, kw, window.stride_w, window.pad_w, window.dilation_w);
  }
};

Geometry geometry(const NodeView& view, const Shape& x, const Shape& y) {
  const auto& attrs = view.attrs<graph::PoolAttrs>();
  return {Nchw(x), Nchw(y), attrs.window, attrs.count_pad, attrs.relu};
}

// Calls visit(n, c, oh, ow) for every output.
template <typename Visit>
void for_each_output(const Nchw& y, Visit visit) {
  for (int64_t n = 0; n < y.n; ++n) {
    for (int64_t c = 0; c < y.c; ++c) {
      for (int64_t oh = 0; oh < y.h; ++oh) {
        for (int64_t ow = 0; ow < y.w; ++ow) visit(n, c, oh, ow);
      }
    }
  }
}

// Of an output that the ReLU stops; no window has so many cells.
constexpr int kNoCell = 255;

template <typename T>
void max_forward(const Geometry& g, const T* x, T* y, uint8_t* argmax) {
  for_each_output(g.y, [&](int64_t n, int64_t c, int64_t oh, int64_t ow) {
    T best = -std::numeric_limits<T>::infinity();
    int best_cell = -1;
    for (int kh = 0; kh < g.window.kernel_h; ++kh) {
      for (int kw = 0; kw < g.window.kernel_w; ++kw) {
        const int64_t ih = g.in_h(oh, kh), iw = g.in_w(ow, kw);
        if (!g.x.inside(ih, iw)) continue;
        const T value = x[g.x.at(n, c, ih, iw)];
        // The first of equals wins, and the first NaN wins for good.
        const bool wins = best_cell < 0 || value > best || (std::isnan(value) && !std::isnan(best));
        if (!wins) continue;
        best = value;
        best_cell = kh * g.window.kernel_w + kw;
      }
    }
    if (g.relu && best <= 0) best = 0, best_cell = kNoCell;
    y[g.y.at(n, c, oh, ow)] = best;
    // A window wholly in padding has no winner; its cell 0 is padding too, where max_input_grad drops the gradient.
    if (argmax) argmax[g.y.at(n, c, oh, ow)] = static_cast<uint8_t>(std::max(best_cell, 0));
  });
}

template <typename T>
void max_input_grad(const Geometry& g, const T* dy, const uint8_t* argmax, T* dx) {
  std::fill_n(dx, g.x.n * g.x.c * g.x.h * g.x.w, T{0});
  for_each_output(g.y, [&](int64_t n, int64_t c, int64_t oh, int64_t ow) {
    const int cell = argmax[g.y.at(n, c, oh, ow)];
    if (g.relu && cell == kNoCell) return;
    const int64_t ih = g.in_h(oh, cell / g.window.kernel_w), iw = g.in_w(ow, cell % g.window.kernel_w);
    if (g.x.inside(ih, iw)) dx[g.x.at(n, c, ih, iw)] += dy[g.y.at(n, c, oh, ow)];
  });
}

// Calls visit(ih, iw) for the cells of an output's window that are not padding.
template <typename Visit>
void for_each_cell(const Geometry& g, int64_t oh, int64_t ow, Visit visit) {
  for (int kh = 0; kh < g.window.kernel_h; ++kh) {
    for (int kw = 0; kw < g.window.kernel_w; ++kw) {
      const int64_t ih = g.in_h(oh, kh), iw = g.in_w(ow, kw);
      if (g.x.inside(ih, iw)) visit(ih, iw);
    }
  }
}

// What the sum of an output's window is multiplied by.
double average_weight(const Geometry& g, int64_t oh, int64_t ow) {
  int64_t cells = 0;
  if (g.count_pad) {
    cells = int64_t{g.window.kernel_h} * g.window.kernel_w;
  } else {
    for_each_cell(g, oh, ow, [&](int64_t, int64_t) { ++cells; });
  }
  return cells > 0 ? 1.0 / static_cast<double>(cells) : 0;
}

template <typename T>
void average_forward(const Geometry& g, const T* x, T* y) {
  for_each_output(g.y, [&](int64_t n, int64_t c, int64_t oh, int64_t ow) {
    double sum = 0;
    for_each_cell(g, oh, ow, [&](int64_t ih, int64_t iw) { sum += x[g.x.at(n, c, ih, iw)]; });
    y[g.y.at(n, c, oh, ow)] = static_cast<T>(sum * average_weight(g, oh, ow));
  });
}

template <typename T>
void average_input_grad(const Geometry& g, const T* dy, T* dx) {
  std::fill_n(dx, g.x.n * g.x.c * g.x.h * g.x.w, T{0});
  for_each_output(g.y, [&](int64_t n, int64_t c, int64_t oh, int64_t ow) {
    const T share = static_cast<T>(dy[g.y.at(n, c, oh, ow)] * average_weight(g, oh, ow));
    for_each_cell(g, oh, ow, [&](int64_t ih, int64_t iw) { dx[g.x.at(n, c, ih, iw)] += share; });
  });
}

// The input range [begin, end) that output `i` of `out` averages, along one axis. Neighbours may overlap by one.
struct Range {
  int64_t begin, end;

  Range(int64_t i, int64_t in, int64_t out) : begin(i * in / out), end(((i + 1) * in + out - 1) / out) {}
  int64_t size() const { return end - begin; }
};

template <typename T>
void adaptive_forward(const Nchw& in, const Nchw& out, const T* x, T* y) {
  for_each_output(out, [&](int64_t n, int64_t c, int64_t oh, int64_t ow) {
    const Range h(oh, in.h, out.h), w(ow, in.w, out.w);
    double sum = 0;
    for (int64_t ih = h.begin; ih < h.end; ++ih) {
      for (int64_t iw = w.begin; iw < w.end; ++iw) sum += x[in.at(n, c, ih, iw)];
    }
    y[out.at(n, c, oh, ow)] = static_cast<T>(sum / static_cast<double>(h.size() * w.size()));
  });
}

template <typename T>
void adaptive_input_grad(const Nchw& in, const Nchw& out, const T* dy, T* dx) {
  std::fill_n(dx, in.n * in.c * in.h * in.w, T{0});
  for_each_output(out, [&](int64_t n, int64_t c, int64_t oh, int64_t ow) {
    const Range h(oh, in.h, out.h), w(ow, in.w, out.w);
    const T share = static_cast<T>(dy[out.at(n, c, oh, ow)] / static_cast<double>(h.size() * w.size()));
    for (int64_t ih = h.begin; ih < h.end; ++ih) {
      for (int64_t iw = w.begin; iw < w.end; ++iw) dx[in.at(n, c, ih, iw)] += share;
    }
  });
}

}  // namespace

Kernel prepare_max_pool(const NodeView& view) {
  const graph::Window& window = view.attrs<graph::PoolAttrs>().window;
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const Geometry g = geometry(view, view.read(0), view.write(0));
      const bool has_argmax = view.num_writes() > 1;
      if (has_argmax && window.kernel_h * window.kernel_w > 255) {
        fail_input("{}: max pooling over {}x{}: a window of at most 255 cells can be trained", view.node.name,
                   window.kernel_h, window.kernel_w);
      }
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* x = at.read<T>(0);
        T* y = at.write<T>(0);
        uint8_t* argmax = has_argmax ? at.write<uint8_t>(1) : nullptr;
        return [=](const StepContext&) { max_forward(g, x, y, argmax); };
      });
    }
    case graph::Pass::InputGrad: {
      const Geometry g = geometry(view, view.write(0), view.read(0));
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* dy = at.read<T>(0);
        const uint8_t* argmax = at.read<uint8_t>(1);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { max_input_grad(g, dy, argmax, dx); };
      });
    }
    default: refuse_pass(view);
  }
}

Kernel prepare_avg_pool(const NodeView& view) {
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const Geometry g = geometry(view, view.read(0), view.write(0));
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* x = at.read<T>(0);
        T* y = at.write<T>(0);
        return [=](const StepContext&) { average_forward(g, x, y); };
      });
    }
    case graph::Pass::InputGrad: {
      const Geometry g = geometry(view, view.write(0), view.read(0));
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* dy = at.read<T>(0);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { average_input_grad(g, dy, dx); };
      });
    }
    default: refuse_pass(view);
  }
}

Kernel prepare_adaptive_avg_pool(const NodeView& view) {
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const Nchw in(view.read(0)), out(view.write(0));
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* x = at.read<T>(0);
        T* y = at.write<T>(0);
        return [=](const StepContext&) { adaptive_forward(in, out, x, y); };
      });
    }
    case graph::Pass::InputGrad: {
      const Nchw in(view.write(0)), out(view.read(0));
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* dy = at.read<T>(0);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { adaptive_input_grad(in, out, dy, dx); };
      });
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
