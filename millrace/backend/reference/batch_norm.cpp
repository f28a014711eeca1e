// Statistics and gradients run over the rows that are samples; padding rows are normalised like the others, so that
// they stay finite, but neither give nor get a gradient.
#include <cmath>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, channels, area;

  explicit Geometry(const Shape& x) : rows(x[0]), channels(x[1]), area(x.elements() / (x[0] * x[1])) {}
  int64_t at(int64_t n, int64_t c, int64_t i) const { return (n * channels + c) * area + i; }
};

// One channel's affine map. Forward and InputGrad both take mean and invstd as stored, so that they agree on the sign
// in front of the ReLU.
struct Channel {
  double mean, invstd, scale, shift;

  double normalised(double x) const { return (x - mean) * invstd; }
  double apply(double x) const { return scale * normalised(x) + shift; }
};

template <typename T>
struct Forward {
  const T *x, *scale, *shift, *mean, *variance, *residual;
  T* y;
};

template <typename T>
void normalise(const Geometry& g, const graph::BatchNormAttrs& attrs, int64_t c, const Channel& channel,
               const Forward<T>& of) {
  for (int64_t n = 0; n < g.rows; ++n) {
    for (int64_t i = 0; i < g.area; ++i) {
      const int64_t e = g.at(n, c, i);
      double y = channel.apply(of.x[e]);
      if (of.residual) y += of.residual[e];
      of.y[e] = static_cast<T>(attrs.relu ? relu(y) : y);
    }
  }
}

template <typename T>
void forward(const Geometry& g, const graph::BatchNormAttrs& attrs, const StepContext& context, const Forward<T>& of,
             T* saved, T* new_mean, T* new_variance) {
  const int64_t samples = context.rows;
  const auto count = static_cast<double>(samples * g.area);
  for (int64_t c = 0; c < g.channels; ++c) {
    double mean = 0, squares = 0;
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t i = 0; i < g.area; ++i) mean += of.x[g.at(n, c, i)];
    }
    if (count > 0) mean /= count;
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t i = 0; i < g.area; ++i) {
        const double deviation = of.x[g.at(n, c, i)] - mean;
        squares += deviation * deviation;
      }
    }
    const double variance = count > 0 ? squares / count : 0;
    saved[c] = static_cast<T>(mean);
    saved[g.channels + c] = static_cast<T>(1.0 / std::sqrt(variance + attrs.epsilon));

    // A micro-batch that is all padding teaches nothing.
    const double share = count > 0 && !context.again ? attrs.momentum : 0;
    const double unbiased = count > 1 ? squares / (count - 1) : variance;
    new_mean[c] = static_cast<T>((1 - share) * of.mean[c] + share * mean);
    new_variance[c] = static_cast<T>((1 - share) * of.variance[c] + share * unbiased);

    normalise(g, attrs, c, {saved[c], saved[g.channels + c], of.scale[c], of.shift[c]}, of);
  }
}

template <typename T>
void evaluate(const Geometry& g, const graph::BatchNormAttrs& attrs, const Forward<T>& of) {
  for (int64_t c = 0; c < g.channels; ++c) {
    const double invstd = 1.0 / std::sqrt(of.variance[c] + attrs.epsilon);
    normalise(g, attrs, c, {of.mean[c], invstd, of.scale[c], of.shift[c]}, of);
  }
}

template <typename T>
struct InputGrad {
  const T *dy, *dy2, *x, *scale, *shift, *saved, *y;
  T *dx, *dsums, *dresidual, *y_again;
};

template <typename T>
void input_grad(const Geometry& g, const graph::BatchNormAttrs& attrs, int64_t samples, const InputGrad<T>& of) {
  const auto count = static_cast<double>(samples * g.area);
  for (int64_t c = 0; c < g.channels; ++c) {
    const Channel channel{of.saved[c], of.saved[g.channels + c], of.scale[c], of.shift[c]};
    // The gradient in front of the ReLU.
    const auto dz_at = [&](int64_t e) -> double {
      const double dy = of.dy2 ? static_cast<double>(of.dy[e]) + of.dy2[e] : of.dy[e];
      if (!attrs.relu) return dy;
      const bool passes = of.y ? of.y[e] > 0 : channel.apply(of.x[e]) > 0;
      return passes ? dy : 0;
    };

    double dscale = 0, dshift = 0;
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t i = 0; i < g.area; ++i) {
        const int64_t e = g.at(n, c, i);
        const double dz = dz_at(e);
        dscale += dz * channel.normalised(of.x[e]);
        dshift += dz;
      }
    }

    // Each element is read before it is written: dx and dresidual may lie over dy, x or y.
    for (int64_t n = 0; n < g.rows; ++n) {
      for (int64_t i = 0; i < g.area; ++i) {
        const int64_t e = g.at(n, c, i);
        double dz = 0, dx = 0;
        if (of.y_again) {  // for a weight gradient, to which padding gives nothing
          const double y = n < samples ? channel.apply(of.x[e]) : 0;
          of.y_again[e] = static_cast<T>(attrs.relu ? relu(y) : y);
        }
        if (n < samples) {
          dz = dz_at(e);
          dx = channel.scale * channel.invstd * (dz - dshift / count - channel.normalised(of.x[e]) * dscale / count);
        }
        of.dx[e] = static_cast<T>(dx);
        if (of.dresidual) of.dresidual[e] = static_cast<T>(dz);
      }
    }
    of.dsums[c] = static_cast<T>(dscale);
    of.dsums[g.channels + c] = static_cast<T>(dshift);
  }
}

}  // namespace

Kernel prepare_batch_norm(const NodeView& view) {
  const auto attrs = view.attrs<graph::BatchNormAttrs>();
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate: {
      const Geometry g(view.read(0));
      const bool training = view.node.pass == graph::Pass::Forward;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const Forward<T> of{.x = at.read<T>(0),
                            .scale = at.read<T>(1),
                            .shift = at.read<T>(2),
                            .mean = at.read<T>(3),
                            .variance = at.read<T>(4),
                            .residual = attrs.residual ? at.read<T>(5) : nullptr,
                            .y = at.write<T>(0)};
        if (!training) return [=](const StepContext&) { evaluate(g, attrs, of); };
        T *saved = at.write<T>(1), *mean = at.write<T>(2), *variance = at.write<T>(3);
        return [=](const StepContext& context) { forward(g, attrs, context, of, saved, mean, variance); };
      });
    }
    case graph::Pass::InputGrad: {
      const Geometry g(view.read(0));
      const bool reads_y = attrs.residual && attrs.relu;
      const bool has_dresidual = attrs.residual && view.num_writes() > 2;
      const bool has_y_again = !attrs.residual && view.num_writes() > 2, has_dy2 = view.num_reads() > 6;
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const InputGrad<T> of{.dy = at.read<T>(0),
                              .dy2 = has_dy2 ? at.read<T>(6) : nullptr,
                              .x = at.read<T>(1),
                              .scale = at.read<T>(2),
                              .shift = at.read<T>(3),
                              .saved = at.read<T>(4),
                              .y = reads_y ? at.read<T>(5) : nullptr,
                              .dx = at.write<T>(0),
                              .dsums = at.write<T>(1),
                              .dresidual = has_dresidual ? at.write<T>(2) : nullptr,
                              .y_again = has_y_again ? at.write<T>(2) : nullptr};
        return [=](const StepContext& context) { input_grad(g, attrs, context.rows, of); };
      });
    }
    case graph::Pass::WeightGrad: {
      const int64_t channels = view.write(0).elements();
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* dsums = at.read<T>(0);
        T *dscale = at.write<T>(0), *dshift = at.write<T>(1);
        return [=](const StepContext&) {
          for (int64_t c = 0; c < channels; ++c) {
            dscale[c] = dsums[c];
            dshift[c] = dsums[channels + c];
          }
        };
      });
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
