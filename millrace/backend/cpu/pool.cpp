// Pooling over channel blocks. Max pooling stores for each output which place of its window won, one byte.
#include <algorithm>
#include <limits>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

using graph::OpKind;
using graph::Pass;
using graph::PoolAttrs;
using graph::Window;

using LaneBytes [[gnu::vector_size(kBlock)]] = uint8_t;

// Runs work(plane of x, plane of y) for every sample and channel block.
template <typename Work>
void over_planes(const BlockedShape& x, const BlockedShape& y, const Work& work) {
  const int64_t planes = x.batch * x.blocks();
#pragma omp parallel for schedule(static)
  for (int64_t plane = 0; plane < planes; ++plane) work(plane * x.pixels(), plane * y.pixels());
}

// The places of a window that lie inside the input, as [begin, end) of kernel indices.
struct Places {
  int begin, end;
  Places(int64_t origin, int64_t extent, int kernel, int dilation) {
    begin = origin >= 0 ? 0 : static_cast<int>((-origin + dilation - 1) / dilation);
    const int64_t room = extent - origin;
    end = static_cast<int>(std::min<int64_t>(kernel, room <= 0 ? 0 : (room + dilation - 1) / dilation));
  }
};

template <typename Visit>
void over_outputs(const BlockedShape& x, const BlockedShape& y, const Window& w, const Visit& visit) {
  for (int64_t oh = 0; oh < y.height; ++oh) {
    const int64_t h = oh * w.stride_h - w.pad_h;
    const Places rows(h, x.height, w.kernel_h, w.dilation_h);
    for (int64_t ow = 0; ow < y.width; ++ow) {
      const int64_t v = ow * w.stride_w - w.pad_w;
      visit(oh * y.width + ow, h, v, rows, Places(v, x.width, w.kernel_w, w.dilation_w));
    }
  }
}

// Of an output that the ReLU stops; no window has so many places.
constexpr int kNoPlace = 255;

template <bool kArgmax>
Task bind_max(const BlockedShape& xs, const BlockedShape& ys, const PoolAttrs& attrs, const Bindings& bind) {
  const Window w = attrs.window;
  const auto* x = bind.read<Lanes>(0);
  auto* y = bind.write<Lanes>(0);
  auto* argmax = kArgmax ? bind.write<LaneBytes>(1) : nullptr;
  return [=](const StepContext&) {
    over_planes(xs, ys, [&](int64_t x0, int64_t y0) {
      over_outputs(xs, ys, w, [&](int64_t o, int64_t h, int64_t v, const Places& rows, const Places& columns) {
        Lanes best = splat(-std::numeric_limits<float>::infinity());
        // The first place inside wins when nothing is greater.
        LaneMask place = LaneMask{} + (rows.begin * w.kernel_w + columns.begin);
        for (int kh = rows.begin; kh < rows.end; ++kh) {
          const Lanes* line = x + x0 + (h + kh * w.dilation_h) * xs.width + v;
          for (int kw = columns.begin; kw < columns.end; ++kw) {
            const Lanes value = line[kw * w.dilation_w];
            // Not "value > best": a NaN must win and stay.
            const LaneMask wins = (value > best) | ((value != value) & (best == best));
            best = select(wins, value, best);
            if constexpr (kArgmax) place = wins ? LaneMask{} + (kh * w.kernel_w + kw) : place;
          }
        }
        if (attrs.relu) {
          const LaneMask stopped = best <= 0.0f;
          best = select(stopped, Lanes{}, best);
          if constexpr (kArgmax) place = stopped ? LaneMask{} + kNoPlace : place;
        }
        y[y0 + o] = best;
        if constexpr (kArgmax) argmax[y0 + o] = __builtin_convertvector(place, LaneBytes);
      });
    });
  };
}

Task bind_max_grad(const BlockedShape& xs, const BlockedShape& ys, const Window& w, const Bindings& bind) {
  const auto* dy = bind.read<Lanes>(0);
  const auto* argmax = bind.read<LaneBytes>(1);
  auto* dx = bind.write<Lanes>(0);
  return [=](const StepContext&) {
    over_planes(xs, ys, [&](int64_t x0, int64_t y0) {
      std::fill(dx + x0, dx + x0 + xs.pixels(), Lanes{});
      over_outputs(xs, ys, w, [&](int64_t o, int64_t h, int64_t v, const Places& rows, const Places& columns) {
        const Lanes gradient = dy[y0 + o];
        const LaneMask place = __builtin_convertvector(argmax[y0 + o], LaneMask);
        for (int kh = rows.begin; kh < rows.end; ++kh) {
          Lanes* line = dx + x0 + (h + kh * w.dilation_h) * xs.width + v;
          for (int kw = columns.begin; kw < columns.end; ++kw) {
            const LaneMask won = place == LaneMask{} + (kh * w.kernel_w + kw);
            line[kw * w.dilation_w] += select(won, gradient, Lanes{});
          }
        }
      });
    });
  };
}

float average_weight(const Window& w, bool count_pad, const Places& rows, const Places& columns) {
  const int places = count_pad ? w.kernel_h * w.kernel_w : (rows.end - rows.begin) * (columns.end - columns.begin);
  return places > 0 ? 1.0f / static_cast<float>(places) : 0.0f;
}

Task bind_average(const BlockedShape& xs, const BlockedShape& ys, const PoolAttrs& attrs, const Bindings& bind) {
  const auto* x = bind.read<Lanes>(0);
  auto* y = bind.write<Lanes>(0);
  return [=, w = attrs.window](const StepContext&) {
    over_planes(xs, ys, [&](int64_t x0, int64_t y0) {
      over_outputs(xs, ys, w, [&](int64_t o, int64_t h, int64_t v, const Places& rows, const Places& columns) {
        Lanes sum{};
        for (int kh = rows.begin; kh < rows.end; ++kh) {
          const Lanes* line = x + x0 + (h + kh * w.dilation_h) * xs.width + v;
          for (int kw = columns.begin; kw < columns.end; ++kw) sum += line[kw * w.dilation_w];
        }
        y[y0 + o] = sum * average_weight(w, attrs.count_pad, rows, columns);
      });
    });
  };
}

Task bind_average_grad(const BlockedShape& xs, const BlockedShape& ys, const PoolAttrs& attrs, const Bindings& bind) {
  const auto* dy = bind.read<Lanes>(0);
  auto* dx = bind.write<Lanes>(0);
  return [=, w = attrs.window](const StepContext&) {
    over_planes(xs, ys, [&](int64_t x0, int64_t y0) {
      std::fill(dx + x0, dx + x0 + xs.pixels(), Lanes{});
      over_outputs(xs, ys, w, [&](int64_t o, int64_t h, int64_t v, const Places& rows, const Places& columns) {
        const Lanes share = dy[y0 + o] * average_weight(w, attrs.count_pad, rows, columns);
        for (int kh = rows.begin; kh < rows.end; ++kh) {
          Lanes* line = dx + x0 + (h + kh * w.dilation_h) * xs.width + v;
          for (int kw = columns.begin; kw < columns.end; ++kw) line[kw * w.dilation_w] += share;
        }
      });
    });
  };
}

// Adaptive pooling: output i averages [floor(i in / out), ceil((i + 1) in / out)).
template <typename Visit>
void over_adaptive(const BlockedShape& x, const BlockedShape& y, const Visit& visit) {
  for (int64_t oh = 0; oh < y.height; ++oh) {
    const int64_t top = oh * x.height / y.height, bottom = ((oh + 1) * x.height + y.height - 1) / y.height;
    for (int64_t ow = 0; ow < y.width; ++ow) {
      const int64_t left = ow * x.width / y.width, right = ((ow + 1) * x.width + y.width - 1) / y.width;
      visit(oh * y.width + ow, top, bottom, left, right);
    }
  }
}

Task bind_adaptive(const BlockedShape& xs, const BlockedShape& ys, const Bindings& bind) {
  const auto* x = bind.read<Lanes>(0);
  auto* y = bind.write<Lanes>(0);
  return [=](const StepContext&) {
    over_planes(xs, ys, [&](int64_t x0, int64_t y0) {
      over_adaptive(xs, ys, [&](int64_t o, int64_t top, int64_t bottom, int64_t left, int64_t right) {
        Lanes sum{};
        for (int64_t h = top; h < bottom; ++h) {
          for (int64_t v = left; v < right; ++v) sum += x[x0 + h * xs.width + v];
        }
        y[y0 + o] = sum / static_cast<float>((bottom - top) * (right - left));
      });
    });
  };
}

Task bind_adaptive_grad(const BlockedShape& xs, const BlockedShape& ys, const Bindings& bind) {
  const auto* dy = bind.read<Lanes>(0);
  auto* dx = bind.write<Lanes>(0);
  return [=](const StepContext&) {
    over_planes(xs, ys, [&](int64_t x0, int64_t y0) {
      std::fill(dx + x0, dx + x0 + xs.pixels(), Lanes{});
      over_adaptive(xs, ys, [&](int64_t o, int64_t top, int64_t bottom, int64_t left, int64_t right) {
        const Lanes share = dy[y0 + o] / static_cast<float>((bottom - top) * (right - left));
        for (int64_t h = top; h < bottom; ++h) {
          for (int64_t v = left; v < right; ++v) dx[x0 + h * xs.width + v] += share;
        }
      });
    });
  };
}

}  // namespace

Kernel prepare_pool(const NodeView& view) {
  const bool backward = view.node.pass == Pass::InputGrad;
  const BlockedShape x(backward ? view.write(0) : view.read(0));
  const BlockedShape y(backward ? view.read(0) : view.write(0));
  Kernel kernel{"loop", 0, {}};
  if (view.node.kind == OpKind::AdaptiveAvgPool) {
    kernel.bind = [=](const Bindings& bind) { return (backward ? bind_adaptive_grad : bind_adaptive)(x, y, bind); };
    return kernel;
  }
  const auto attrs = view.attrs<PoolAttrs>();
  if (view.node.kind == OpKind::AvgPool) {
    kernel.bind = [=](const Bindings& bind) {
      return (backward ? bind_average_grad : bind_average)(x, y, attrs, bind);
    };
  } else if (backward) {
    kernel.bind = [=](const Bindings& bind) { return bind_max_grad(x, y, attrs.window, bind); };
  } else {
    const bool argmax = view.num_writes() == 2;
    kernel.bind = [=](const Bindings& bind) { return (argmax ? bind_max<true> : bind_max<false>)(x, y, attrs, bind); };
  }
  return kernel;
}

}  // namespace millrace::backend::cpu
