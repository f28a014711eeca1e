// Batch norm with its residual add and ReLU, in the fewest passes over memory: a slab (one channel block of all
// samples) is summed and then finished while it is still in the cache. Sums are kept per sample and added in
// sample order, so a result does not depend on how slabs and samples are spread over threads.
#include <omp.h>

#include <cmath>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/cpu/past_caches.h"

namespace millrace::backend::cpu {
namespace {

using graph::BatchNormAttrs;
using graph::Pass;

// Runs sum(n, block) for every sample, then finish(block), then apply(n, block) for every sample.
template <typename Sum, typename Finish, typename Apply>
void over_slabs(const BlockedShape& shape, const Sum& sum, const Finish& finish, const Apply& apply) {
  const int64_t blocks = shape.blocks(), batch = shape.batch;
  const int threads = omp_get_max_threads();
  if (blocks % threads == 0 || blocks >= 4 * threads) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t n = 0; n < batch; ++n) sum(n, block);
      finish(block);
      // Backwards: the samples summed last are the likeliest to be in the cache.
      for (int64_t n = batch - 1; n >= 0; --n) apply(n, block);
    }
    return;
  }
#pragma omp parallel
  {
#pragma omp for collapse(2) schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t n = 0; n < batch; ++n) sum(n, block);
    }
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) finish(block);
#pragma omp for collapse(2) schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t n = 0; n < batch; ++n) apply(n, block);
    }
  }
}

struct PairOfLanes {
  Lanes first{}, second{};
};

// Sums over one plane; four accumulators hide the latency of the additions.
template <typename Term>
PairOfLanes sum_plane(int64_t pixels, const Term& term) {
  PairOfLanes sums[4];
  int64_t i = 0;
  for (; i + 4 <= pixels; i += 4) {
    for (int k = 0; k < 4; ++k) term(i + k, sums[k]);
  }
  for (; i < pixels; ++i) term(i, sums[0]);
  return {(sums[0].first + sums[1].first) + (sums[2].first + sums[3].first),
          (sums[0].second + sums[1].second) + (sums[2].second + sums[3].second)};
}

// Per-sample sums of every block, and the two coefficient vectors each block ends up with.
struct Scratch {
  PairOfLanes* sums;
  PairOfLanes* coefficients;

  static size_t bytes(const BlockedShape& shape) {
    return static_cast<size_t>(shape.blocks() * (shape.batch + 1)) * sizeof(PairOfLanes);
  }
  Scratch(void* memory, const BlockedShape& shape)
      : sums(static_cast<PairOfLanes*>(memory)), coefficients(sums + shape.blocks() * shape.batch) {}
};

struct Totals {
  double first[kBlock] = {}, second[kBlock] = {};
};

Totals add_samples(const PairOfLanes* sums, int64_t samples) {
  Totals totals;
  for (int64_t n = 0; n < samples; ++n) {
    for (int lane = 0; lane < kBlock; ++lane) {
      totals.first[lane] += sums[n].first[lane];
      totals.second[lane] += sums[n].second[lane];
    }
  }
  return totals;
}

template <bool kRelu, bool kResidual>
Task bind_forward(const BlockedShape& shape, const BatchNormAttrs& attrs, const Bindings& bind) {
  const auto* x = bind.read<Lanes>(0);
  const auto* scale = bind.read<float>(1);
  const auto* shift = bind.read<float>(2);
  const auto* residual = kResidual ? bind.read<Lanes>(5) : nullptr;
  auto* y = bind.write<Lanes>(0);
  auto* mean = bind.write<float>(1);
  auto* inverse = mean + shape.channels;
  auto* running_mean = bind.write<float>(2);
  auto* running_variance = bind.write<float>(3);
  const Scratch scratch(bind.scratch, shape);
  const auto momentum = attrs.momentum, epsilon = attrs.epsilon;
  const bool past_caches = exceeds_caches(shape);

  return [=](const StepContext& step) {
    const int64_t rows = step.rows, pixels = shape.pixels();
    const auto count = static_cast<double>(rows * pixels);
    // Sums of x - origin, origin being some element of the channel: no cancellation when the mean is large.
    auto sum = [&](int64_t n, int64_t block) {
      if (n >= rows) return;
      const Lanes origin = x[shape.plane(0, block)];
      const Lanes* plane = x + shape.plane(n, block);
      scratch.sums[block * shape.batch + n] = sum_plane(pixels, [&](int64_t i, PairOfLanes& sums) {
        const Lanes d = plane[i] - origin;
        sums.first += d;
        sums.second += d * d;
      });
    };
    auto finish = [&](int64_t block) {
      const Totals totals = add_samples(scratch.sums + block * shape.batch, rows);
      const Lanes origin = x[shape.plane(0, block)];
      Lanes factor{}, offset{};
      for (int lane = 0; lane < channels_in(block, shape.channels); ++lane) {
        const int64_t c = block * kBlock + lane;
        const double distance = totals.first[lane] / count;
        const double m = origin[lane] + distance;
        const double variance = std::max(0.0, totals.second[lane] / count - distance * distance);
        const double inv = 1.0 / std::sqrt(variance + epsilon);
        const double unbiased = count > 1 ? variance * count / (count - 1) : variance;
        mean[c] = static_cast<float>(m);
        inverse[c] = static_cast<float>(inv);
        factor[lane] = static_cast<float>(inv * scale[c]);
        offset[lane] = shift[c];
        if (step.again) continue;
        running_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * m);
        running_variance[c] = static_cast<float>((1 - momentum) * running_variance[c] + momentum * unbiased);
      }
      scratch.coefficients[block] = {factor, offset};
    };
    auto apply = [&](int64_t n, int64_t block) {
      const auto [factor, offset] = scratch.coefficients[block];
      const Lanes m = load_channels(mean, block, shape.channels);
      const int64_t base = shape.plane(n, block);
      const auto store_all = [&](const auto& store) {
        for (int64_t i = base; i < base + pixels; ++i) {
          Lanes value = (x[i] - m) * factor + offset;
          if constexpr (kResidual) value += residual[i];
          store(y[i], kRelu ? relu(value) : value);
        }
      };
      if (past_caches) {
        store_all([](Lanes& to, Lanes value) { store_past_caches(to, value); });
        finish_past_caches();
      } else {
        store_all([](Lanes& to, Lanes value) { to = value; });
      }
    };
    over_slabs(shape, sum, finish, apply);
  };
}

template <bool kRelu, bool kResidual>
Task bind_evaluate(const BlockedShape& shape, const BatchNormAttrs& attrs, const Bindings& bind) {
  const auto* x = bind.read<Lanes>(0);
  const auto* scale = bind.read<float>(1);
  const auto* shift = bind.read<float>(2);
  const auto* mean = bind.read<float>(3);
  const auto* variance = bind.read<float>(4);
  const auto* residual = kResidual ? bind.read<Lanes>(5) : nullptr;
  auto* y = bind.write<Lanes>(0);
  const double epsilon = attrs.epsilon;
  return [=](const StepContext&) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t n = 0; n < shape.batch; ++n) {
      for (int64_t block = 0; block < shape.blocks(); ++block) {
        Lanes factor{};
        for (int lane = 0; lane < channels_in(block, shape.channels); ++lane) {
          const int64_t c = block * kBlock + lane;
          factor[lane] = static_cast<float>(scale[c] / std::sqrt(variance[c] + epsilon));
        }
        const Lanes m = load_channels(mean, block, shape.channels);
        const Lanes offset = load_channels(shift, block, shape.channels);
        const int64_t base = shape.plane(n, block);
        for (int64_t i = base; i < base + shape.pixels(); ++i) {
          Lanes value = (x[i] - m) * factor + offset;
          if constexpr (kResidual) value += residual[i];
          y[i] = kRelu ? relu(value) : value;
        }
      }
    }
  };
}

// dx = factor (dz - dshift / count - xhat dscale / count), dz being dy where the ReLU let through. dy may come in two
// parts, which are added here: one pass over memory less.
template <bool kRelu, bool kFromOutput, bool kResidualGradient, bool kTwoParts = false>
Task bind_input_grad(const BlockedShape& shape, const Bindings& bind) {
  const auto* dy1 = bind.read<Lanes>(0);
  const auto* dy2 = kTwoParts ? bind.read<Lanes>(6) : nullptr;
  const auto* x = bind.read<Lanes>(1);
  const auto* scale = bind.read<float>(2);
  const auto* shift = bind.read<float>(3);
  const auto* mean = bind.read<float>(4);
  const auto* inverse = mean + shape.channels;
  const auto* y = kFromOutput ? bind.read<Lanes>(5) : nullptr;
  auto* dx = bind.write<Lanes>(0);
  auto* dscale = bind.write<float>(1);
  auto* dshift = dscale + shape.channels;
  auto* dresidual = kResidualGradient ? bind.write<Lanes>(2) : nullptr;
  const Scratch scratch(bind.scratch, shape);

  return [=](const StepContext& step) {
    const int64_t rows = step.rows, pixels = shape.pixels();
    const auto count = static_cast<float>(rows * pixels);
    struct Channel {
      Lanes mean, inverse, scale, shift;
    };
    auto channel = [&](int64_t block) -> Channel {
      return {load_channels(mean, block, shape.channels), load_channels(inverse, block, shape.channels),
              load_channels(scale, block, shape.channels), load_channels(shift, block, shape.channels)};
    };
    auto masked = [&](int64_t i, Lanes centred, Lanes factor, Lanes offset) {
      Lanes dy = dy1[i];
      if constexpr (kTwoParts) dy += dy2[i];
      if constexpr (!kRelu) return dy;
      if constexpr (kFromOutput) return select(y[i] > 0.0f, dy, Lanes{});
      return select(centred * factor + offset > 0.0f, dy, Lanes{});
    };
    auto sum = [&](int64_t n, int64_t block) {
      if (n >= rows) return;
      const Channel c = channel(block);
      const Lanes factor = c.scale * c.inverse;
      const int64_t base = shape.plane(n, block);
      scratch.sums[block * shape.batch + n] = sum_plane(pixels, [&](int64_t i, PairOfLanes& sums) {
        const Lanes centred = x[base + i] - c.mean;
        const Lanes dz = masked(base + i, centred, factor, c.shift);
        if constexpr (kResidualGradient) dresidual[base + i] = dz;
        sums.first += dz;
        sums.second += dz * centred;
      });
    };
    auto finish = [&](int64_t block) {
      const Totals totals = add_samples(scratch.sums + block * shape.batch, rows);
      const Channel c = channel(block);
      Lanes first, second;
      for (int lane = 0; lane < kBlock; ++lane) {
        first[lane] = static_cast<float>(totals.first[lane]);
        second[lane] = static_cast<float>(totals.second[lane] * c.inverse[lane]);
      }
      store_channels(second, dscale, block, shape.channels);
      store_channels(first, dshift, block, shape.channels);
      scratch.coefficients[block] = {first / count, second * c.inverse / count};
    };
    auto apply = [&](int64_t n, int64_t block) {
      const int64_t base = shape.plane(n, block);
      if (n >= rows) {
        for (int64_t i = base; i < base + pixels; ++i) {
          dx[i] = Lanes{};
          if constexpr (kResidualGradient) dresidual[i] = Lanes{};
        }
        return;
      }
      const Channel c = channel(block);
      const Lanes factor = c.scale * c.inverse;
      const auto [mean_dz, slope] = scratch.coefficients[block];
      for (int64_t i = base; i < base + pixels; ++i) {
        const Lanes centred = x[i] - c.mean;
        // Where dz was written it is read again, instead of all that it was made from.
        const Lanes dz = kResidualGradient ? dresidual[i] : masked(i, centred, factor, c.shift);
        dx[i] = factor * (dz - mean_dz - centred * slope);
      }
    };
    over_slabs(shape, sum, finish, apply);
  };
}

Kernel prepare_weight_grad(int64_t channels) {
  return {"copy", 0, [=](const Bindings& bind) -> Task {
            const auto* sums = bind.read<float>(0);
            auto* dscale = bind.write<float>(0);
            auto* dshift = bind.write<float>(1);
            return [=](const StepContext&) {
              std::memcpy(dscale, sums, static_cast<size_t>(channels) * sizeof(float));
              std::memcpy(dshift, sums + channels, static_cast<size_t>(channels) * sizeof(float));
            };
          }};
}

}  // namespace

Kernel prepare_batch_norm(const NodeView& view) {
  const auto& attrs = view.attrs<BatchNormAttrs>();
  if (view.node.pass == Pass::WeightGrad) return prepare_weight_grad(view.write(0)[0]);

  const BlockedShape shape(view.write(0));
  Kernel kernel{"slab", Scratch::bytes(shape), {}};
  if (view.node.pass == Pass::InputGrad) {
    const bool from_output = attrs.relu && attrs.residual, residual_gradient = view.num_writes() == 3;
    const bool two_parts = view.num_reads() > 6;
    kernel.bind = [=](const Bindings& bind) {
      if (!attrs.relu) return bind_input_grad<false, false, false>(shape, bind);
      if (!from_output) return bind_input_grad<true, false, false>(shape, bind);
      if (two_parts) {
        return residual_gradient ? bind_input_grad<true, true, true, true>(shape, bind)
                                 : bind_input_grad<true, true, false, true>(shape, bind);
      }
      return residual_gradient ? bind_input_grad<true, true, true>(shape, bind)
                               : bind_input_grad<true, true, false>(shape, bind);
    };
  } else if (view.node.pass == Pass::Evaluate) {
    kernel.bind = [=](const Bindings& bind) {
      if (attrs.residual) {
        return attrs.relu ? bind_evaluate<true, true>(shape, attrs, bind)
                          : bind_evaluate<false, true>(shape, attrs, bind);
      }
      return attrs.relu ? bind_evaluate<true, false>(shape, attrs, bind)
                        : bind_evaluate<false, false>(shape, attrs, bind);
    };
  } else {
    kernel.bind = [=](const Bindings& bind) {
      if (attrs.residual) {
        return attrs.relu ? bind_forward<true, true>(shape, attrs, bind)
                          : bind_forward<false, true>(shape, attrs, bind);
      }
      return attrs.relu ? bind_forward<true, false>(shape, attrs, bind)
                        : bind_forward<false, false>(shape, attrs, bind);
    };
  }
  return kernel;
}

}  // namespace millrace::backend::cpu
