// Batch norm with its residual add and ReLU, in the fewest passes over memory: forward reads x for its sums and once
// more to normalise; backward reads x and dy for its sums - leaving the masked dy behind where the residual needs it
// anyway - and once more for dx.
#include <algorithm>
#include <cstdint>

#include "millrace/backend/cuda/channel_sums.cuh"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::BatchNormAttrs;
using graph::Pass;

constexpr int kThreads = SumGrid::kThreads;

// Everything a pass touches; what it does not use is null.
template <typename T>
struct Operands {
  const T *x, *residual, *y_read, *dy, *dy2;
  const float *scale, *shift, *saved, *running_mean, *running_variance, *sums;
  T *y, *dx, *dresidual;
  float *saved_out, *mean_out, *variance_out, *dsums;
  float* partial;
  int64_t pixels, area;  // area: pixels of one sample
  int64_t channels, stored;
  float epsilon, momentum;
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    forward_sums(Operands<T> o, int lanes, const StepContext* context, unsigned* counters) {
  constexpr int kSize = Vector<T>::kSize;
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
  const int64_t first = (int64_t{blockIdx.y} * lanes + lane) * kSize;
  const int64_t samples = context->rows * o.area;
  auto finish = [&](int64_t c, double origin, double total, double total_squares) {
    const auto count = static_cast<double>(samples);
    const double off = count > 0 ? total / count : 0;
    const double mean = count > 0 ? origin + off : 0;
    const double spread = fmax(total_squares - count * off * off, 0.0);  // NaN stays below
    const double variance = count > 0 ? (isnan(total_squares) ? total_squares : spread / count) : 0;
    o.saved_out[c] = static_cast<float>(mean);
    o.saved_out[o.channels + c] = static_cast<float>(1 / sqrt(variance + static_cast<double>(o.epsilon)));
    const double share = count > 0 && !context->again ? static_cast<double>(o.momentum) : 0;
    const double unbiased = count > 1 ? variance * count / (count - 1) : variance;
    o.mean_out[c] = static_cast<float>((1 - share) * o.running_mean[c] + share * mean);
    o.variance_out[c] = static_cast<float>((1 - share) * o.running_variance[c] + share * unbiased);
  };
  if (o.sums && samples == o.pixels) {  // the convolution has seen nothing but samples
    const int64_t c = int64_t{blockIdx.y} * lanes * kSize + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < lanes * kSize && c < o.channels) finish(c, 0, o.sums[c], o.sums[o.stored + c]);
    return;
  }
  float sum[kSize] = {}, squares[kSize] = {};
  // Sums of differences from the first pixel: what is left of a large mean would drown the variance.
  if (first < o.stored && samples > 0) {
    const Floats<T> origin = load(o.x + first);
    const int64_t stride = int64_t{gridDim.x} * rows;
    // From the end, which the convolution before has just written; normalising then begins at the start.
    int64_t pixel = int64_t{blockIdx.x} * rows + row;
    for (; pixel + 3 * stride < samples; pixel += 4 * stride) {
      Floats<T> x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = load(o.x + (samples - 1 - pixel - j * stride) * o.stored + first);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          const float d = x[j].at[k] - origin.at[k];
          sum[k] += d;
          squares[k] += d * d;
        }
      }
    }
    for (; pixel < samples; pixel += stride) {
      const Floats<T> x = load(o.x + (samples - 1 - pixel) * o.stored + first);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const float d = x.at[k] - origin.at[k];
        sum[k] += d;
        squares[k] += d * d;
      }
    }
  }
  Totals<T>::add(sum, squares, lanes, o.stored, o.partial, counters,
                 [&](int64_t c, double total, double total_squares) {
                   if (c < o.channels) finish(c, to_float(o.x[c]), total, total_squares);
                 });
}

// One number for each channel of a vector; zeros for padding.
template <typename T>
__device__ Floats<T> of_channels(const float* from, int64_t first, int64_t channels) {
  constexpr int kSize = Vector<T>::kSize;
  Floats<T> floats;
  if (channels % kSize == 0) {  // then every vector is whole, and lies at a multiple of sixteen bytes
#pragma unroll
    for (int k = 0; k < kSize; k += 4) {
      const float4 four = first < channels ? *reinterpret_cast<const float4*>(from + first + k) : float4{};
      floats.at[k] = four.x, floats.at[k + 1] = four.y, floats.at[k + 2] = four.z, floats.at[k + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) floats.at[k] = first + k < channels ? from[first + k] : 0;
  }
  return floats;
}

// y = factor x + offset, per channel.
template <typename T>
struct Affine {
  Floats<T> factor, offset;
};

enum class Source { Saved, Running };

template <Source kSource, typename T>
__device__ Affine<T> affine_of(const Operands<T>& o, int64_t first) {
  const Floats<T> scale = of_channels<T>(o.scale, first, o.channels),
                  shift = of_channels<T>(o.shift, first, o.channels);
  const Floats<T> mean = of_channels<T>(kSource == Source::Saved ? o.saved : o.running_mean, first, o.channels);
  Floats<T> spread =
      of_channels<T>(kSource == Source::Saved ? o.saved + o.channels : o.running_variance, first, o.channels);
  Affine<T> affine;
#pragma unroll
  for (int k = 0; k < Vector<T>::kSize; ++k) {
    if (kSource == Source::Running) spread.at[k] = rsqrtf(spread.at[k] + o.epsilon);
    affine.factor.at[k] = scale.at[k] * spread.at[k];
    affine.offset.at[k] = shift.at[k] - mean.at[k] * affine.factor.at[k];
  }
  return affine;
}

// A thread keeps one vector of channels and strides over pixels. `vectors`: of a pixel.
struct Walk {
  int64_t first, stride;  // of the thread's pixels
  int vector;
  __device__ explicit Walk(int vectors) {
    const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
    vector = static_cast<int>(thread % vectors);
    first = thread / vectors;
    stride = int64_t{gridDim.x} * blockDim.x / vectors;
  }
};

template <Source kSource, bool kResidual, bool kRelu, typename T>
__global__ void __launch_bounds__(256) normalise(Operands<T> o, int vectors) {
  constexpr int kSize = Vector<T>::kSize;
  const Walk walk(vectors);
  if (walk.first >= o.pixels) return;
  const int64_t first = int64_t{walk.vector} * kSize;
  const Affine<T> affine = affine_of<kSource>(o, first);
  struct Raw {
    Vector<T> x, residual;
  };
  const auto fetch = [&](int64_t pixel) {
    Raw raw;
    raw.x = load_raw(o.x + pixel * o.stored + first);
    if constexpr (kResidual) raw.residual = load_raw(o.residual + pixel * o.stored + first);
    return raw;
  };
  const auto put = [&](int64_t pixel, const Raw& raw) {
    Floats<T> x = floats_of(raw.x), residual;
    if constexpr (kResidual) residual = floats_of(raw.residual);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      float y = affine.factor.at[k] * x.at[k] + affine.offset.at[k];
      if constexpr (kResidual) y += residual.at[k];
      x.at[k] = kRelu ? relu(y) : y;
    }
    store(o.y + pixel * o.stored + first, x);
  };
  int64_t pixel = walk.first;
  for (; pixel + walk.stride < o.pixels; pixel += 2 * walk.stride) {
    const Raw one = fetch(pixel), two = fetch(pixel + walk.stride);
    put(pixel, one);
    put(pixel + walk.stride, two);
  }
  if (pixel < o.pixels) put(pixel, fetch(pixel));
}

// What dy in front of the ReLU follows from. With a residual the sign is that of y, without it follows from x.
template <bool kResidual, bool kRelu, bool kSecond, typename T>
struct Incoming {
  Vector<T> x, dy, dy2, y;

  __device__ static Incoming fetch(const Operands<T>& o, int64_t at) {
    Incoming in;
    in.x = load_raw(o.x + at);
    in.dy = load_raw(o.dy + at);
    if constexpr (kSecond) in.dy2 = load_raw(o.dy2 + at);
    if constexpr (kRelu && kResidual) in.y = load_raw(o.y_read + at);
    return in;
  }
  __device__ Floats<T> masked(const Floats<T>& xs, const Affine<T>& affine) const {
    constexpr int kSize = Vector<T>::kSize;
    Floats<T> dz = floats_of(dy);
    if constexpr (kSecond) {
      const Floats<T> more = floats_of(dy2);
#pragma unroll
      for (int k = 0; k < kSize; ++k) dz.at[k] += more.at[k];
    }
    if constexpr (kRelu && kResidual) {
      const Floats<T> ys = floats_of(y);
#pragma unroll
      for (int k = 0; k < kSize; ++k) dz.at[k] = ys.at[k] > 0 ? dz.at[k] : 0;
    } else if constexpr (kRelu) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        dz.at[k] = affine.factor.at[k] * xs.at[k] + affine.offset.at[k] > 0 ? dz.at[k] : 0;
      }
    }
    return dz;
  }
};

// What is left behind on the way: the masked dy of a residual, or y once more.
enum class Leaves { Nothing, Masked, Output };

template <bool kResidual, bool kRelu, bool kSecond, Leaves kLeaves, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_sums(Operands<T> o, int lanes, const StepContext* context, unsigned* counters) {
  constexpr int kSize = Vector<T>::kSize;
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
  const int64_t first = (int64_t{blockIdx.y} * lanes + lane) * kSize;
  const int64_t samples = context->rows * o.area;
  float scale_sum[kSize] = {}, shift_sum[kSize] = {};
  if (first < o.stored) {
    const Affine<T> affine = affine_of<Source::Saved>(o, first);
    const Floats<T> mean = of_channels<T>(o.saved, first, o.channels);
    const int stride = static_cast<int>(gridDim.x) * rows, last = static_cast<int>(samples) - 1;
    using In = Incoming<kResidual, kRelu, kSecond, T>;
    const auto fetch = [&](int pixel) { return In::fetch(o, pixel * o.stored + first); };
    const auto visit = [&](int pixel, const In& in) {
      const int64_t at = pixel * o.stored + first;
      const Floats<T> x = floats_of(in.x);
      const Floats<T> dz = in.masked(x, affine);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        scale_sum[k] += dz.at[k] * (x.at[k] - mean.at[k]);
        shift_sum[k] += dz.at[k];
      }
      if constexpr (kLeaves == Leaves::Masked) store(o.dresidual + at, dz);
      if constexpr (kLeaves == Leaves::Output) {
        Floats<T> y;
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          const float value = affine.factor.at[k] * x.at[k] + affine.offset.at[k];
          y.at[k] = kRelu ? relu(value) : value;
        }
        store(o.y + at, y);
      }
    };
    // From the end: the kernel before has just written it, and the one that follows begins at the start.
    int pixel = last - static_cast<int>(blockIdx.x) * rows - row;
    if constexpr (!kResidual) {  // with one there are loads enough under way, and no registers left
#pragma unroll 1
      for (; pixel >= stride; pixel -= 2 * stride) {
        const In one = fetch(pixel), two = fetch(pixel - stride);
        visit(pixel, one);
        visit(pixel - stride, two);
      }
    }
#pragma unroll 1
    for (; pixel >= 0; pixel -= stride) visit(pixel, fetch(pixel));
    if constexpr (kLeaves != Leaves::Nothing) {  // padding gets no gradient
      T* left = kLeaves == Leaves::Masked ? o.dresidual : o.y;
      for (int64_t rest = samples + int64_t{blockIdx.x} * rows + row; rest < o.pixels; rest += stride) {
        store(left + rest * o.stored + first, Floats<T>{});
      }
    }
  }
  Totals<T>::add(scale_sum, shift_sum, lanes, o.stored, o.partial, counters,
                 [&](int64_t c, double scale, double shift) {
                   if (c >= o.channels) return;
                   o.dsums[c] = static_cast<float>(scale * static_cast<double>(o.saved[o.channels + c]));
                   o.dsums[o.channels + c] = static_cast<float>(shift);
                 });
}

// dx = factor (dz - dshift / count - xhat dscale / count), as a dz + b x + d.
template <bool kRelu, bool kResidual, typename T>
__global__ void __launch_bounds__(256) input_gradient(Operands<T> o, int vectors, const StepContext* context) {
  constexpr int kSize = Vector<T>::kSize;
  const Walk walk(vectors);
  if (walk.first >= o.pixels) return;
  const int64_t samples = context->rows * o.area;
  const int64_t first = int64_t{walk.vector} * kSize;
  const Affine<T> affine = affine_of<Source::Saved>(o, first);
  Floats<T> slope{}, constant{};
  if (samples > 0) {
    const Floats<T> mean = of_channels<T>(o.saved, first, o.channels);
    const Floats<T> spread = of_channels<T>(o.saved + o.channels, first, o.channels);
    const Floats<T> dscale = of_channels<T>(o.dsums, first, o.channels);
    const Floats<T> dshift = of_channels<T>(o.dsums + o.channels, first, o.channels);
    const float inverse = 1.0f / static_cast<float>(samples);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      slope.at[k] = -affine.factor.at[k] * spread.at[k] * dscale.at[k] * inverse;
      constant.at[k] = -affine.factor.at[k] * dshift.at[k] * inverse - slope.at[k] * mean.at[k];
    }
  }
  // The sums left dz behind where there is a residual.
  using In = Incoming<kResidual, kRelu, false, T>;
  const auto fetch = [&](int64_t pixel) { return In::fetch(o, pixel * o.stored + first); };
  const auto put = [&](int64_t pixel, const In& in) {
    const Floats<T> x = floats_of(in.x);
    const Floats<T> dz = in.masked(x, affine);
    Floats<T> dx;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      dx.at[k] = affine.factor.at[k] * dz.at[k] + slope.at[k] * x.at[k] + constant.at[k];
    }
    store(o.dx + pixel * o.stored + first, dx);
  };
  int64_t pixel = walk.first;
  for (; pixel + walk.stride < samples; pixel += 2 * walk.stride) {
    const In one = fetch(pixel), two = fetch(pixel + walk.stride);
    put(pixel, one);
    put(pixel + walk.stride, two);
  }
  for (; pixel < samples; pixel += walk.stride) put(pixel, fetch(pixel));
  for (; pixel < o.pixels; pixel += walk.stride) store(o.dx + pixel * o.stored + first, Floats<T>{});
}

__global__ void copy_sums(const float* dsums, float* dscale, float* dshift, int channels, int stored) {
  for (int c = threadIdx.x; c < stored; c += blockDim.x) {
    dscale[c] = c < channels ? dsums[c] : 0;
    dshift[c] = c < channels ? dsums[channels + c] : 0;
  }
}

// Blocks so that the threads are a whole number of pixels: the stride of a walk then keeps its channels.
int walk_blocks(const Device& device, int64_t pixels, int vectors) {
  int64_t blocks = grid_for(device, pixels * vectors, 256);
  // 256 blocks' threads are whole pixels if the vectors divide 256 times the blocks.
  int64_t multiple = 1;
  while (multiple * 256 % vectors != 0) ++multiple;
  return static_cast<int>((blocks + multiple - 1) / multiple * multiple);
}

template <typename T>
Operands<T> geometry(const NodeView& view) {
  const Image x(view.read(0));
  const auto& attrs = view.attrs<BatchNormAttrs>();
  if (x.pixels() > INT32_MAX / 2) refuse_shape(view, "too many pixels to be counted");
  Operands<T> o{};
  o.pixels = x.pixels();
  o.area = x.h * x.w;
  o.channels = x.channels;
  o.stored = x.c;
  o.epsilon = static_cast<float>(attrs.epsilon);
  o.momentum = static_cast<float>(attrs.momentum);
  return o;
}

template <Source kSource, typename T>
void launch_normalise(const Device& device, const Operands<T>& o, bool has_residual, bool has_relu) {
  const int vectors = static_cast<int>(o.stored / Vector<T>::kSize);
  const int blocks = walk_blocks(device, o.pixels, vectors);
  const auto kernel = has_residual
                          ? (has_relu ? normalise<kSource, true, true, T> : normalise<kSource, true, false, T>)
                          : (has_relu ? normalise<kSource, false, true, T> : normalise<kSource, false, false, T>);
  kernel<<<blocks, 256, 0, device.stream>>>(o, vectors);
  MILLRACE_LAUNCHED("normalise");
}

template <typename T>
Kernel prepare_forward(const Device& device, const NodeView& view) {
  const auto attrs = view.attrs<BatchNormAttrs>();
  const Operands<T> fixed = geometry<T>(view);
  const bool training = view.node.pass == Pass::Forward;
  const int sums = 5 + (attrs.residual ? 1 : 0);  // where they are among the reads, if they are there
  const bool has_sums = training && view.num_reads() > sums;
  const SumGrid grid = SumGrid::of<T>(device, fixed.pixels, fixed.stored);
  return {
      "two passes", training ? grid.scratch_bytes(fixed.stored) : 0, [=](const Bindings& bind) -> Task {
        Operands<T> o = fixed;
        o.x = bind.read<T>(0);
        o.scale = bind.read<float>(1);
        o.shift = bind.read<float>(2);
        o.running_mean = bind.read<float>(3);
        o.running_variance = bind.read<float>(4);
        o.residual = attrs.residual ? bind.read<T>(5) : nullptr;
        o.sums = has_sums ? bind.read<float>(sums) : nullptr;
        o.y = bind.write<T>(0);
        if (!training) {
          return [=](const StepContext&) { launch_normalise<Source::Running>(device, o, attrs.residual, attrs.relu); };
        }
        o.saved = o.saved_out = bind.write<float>(1);
        o.mean_out = bind.write<float>(2);
        o.variance_out = bind.write<float>(3);
        o.partial = static_cast<float*>(bind.scratch);
        return [=](const StepContext&) {
          forward_sums<T><<<grid.blocks, kThreads, 0, device.stream>>>(o, grid.lanes, device.context, device.counters);
          MILLRACE_LAUNCHED("forward_sums");
          launch_normalise<Source::Saved>(device, o, attrs.residual, attrs.relu);
        };
      }};
}

template <typename T>
auto sums_kernel(const BatchNormAttrs& attrs, bool second, Leaves leaves) {
  constexpr Leaves kNothing = Leaves::Nothing, kMasked = Leaves::Masked, kOutput = Leaves::Output;
  if (!attrs.relu) {
    return leaves == kOutput ? backward_sums<false, false, false, kOutput, T>
                             : backward_sums<false, false, false, kNothing, T>;
  }
  if (!attrs.residual) {
    return leaves == kOutput ? backward_sums<false, true, false, kOutput, T>
                             : backward_sums<false, true, false, kNothing, T>;
  }
  if (second) return backward_sums<true, true, true, kMasked, T>;
  return leaves == kMasked ? backward_sums<true, true, false, kMasked, T>
                           : backward_sums<true, true, false, kNothing, T>;
}

template <typename T>
Kernel prepare_input_grad(const Device& device, const NodeView& view) {
  const auto attrs = view.attrs<BatchNormAttrs>();
  const Operands<T> fixed = geometry<T>(view);
  const bool from_output = attrs.residual && attrs.relu;
  const bool second = view.num_reads() > 6, has_dresidual = attrs.residual && view.num_writes() > 2;
  const bool has_output = !attrs.residual && view.num_writes() > 2;
  const SumGrid grid = SumGrid::of<T>(device, fixed.pixels, fixed.stored);
  // Where nobody asks for the residual's gradient, the masked sum of two parts still needs a place.
  const bool keeps = from_output && (has_dresidual || second);
  const bool keeps_in_scratch = keeps && !has_dresidual;
  const size_t sums_bytes = (grid.scratch_bytes(fixed.stored) + 255) / 256 * 256;
  const size_t kept_bytes = keeps_in_scratch ? static_cast<size_t>(fixed.pixels * fixed.stored) * sizeof(T) : 0;
  return {
      "two passes", sums_bytes + kept_bytes, [=](const Bindings& bind) -> Task {
        Operands<T> o = fixed;
        o.dy = bind.read<T>(0);
        o.x = bind.read<T>(1);
        o.scale = bind.read<float>(2);
        o.shift = bind.read<float>(3);
        o.saved = bind.read<float>(4);
        o.y_read = from_output ? bind.read<T>(5) : nullptr;
        o.dy2 = second ? bind.read<T>(6) : nullptr;
        o.dx = bind.write<T>(0);
        o.dsums = bind.write<float>(1);
        o.partial = static_cast<float*>(bind.scratch);
        if (keeps) {
          o.dresidual = has_dresidual ? bind.write<T>(2)
                                      : reinterpret_cast<T*>(static_cast<std::byte*>(bind.scratch) + sums_bytes);
        }
        if (has_output) o.y = bind.write<T>(2);
        T* dresidual_copy = has_dresidual && !keeps ? bind.write<T>(2) : nullptr;  // residual without ReLU
        const Leaves leaves = keeps ? Leaves::Masked : has_output ? Leaves::Output : Leaves::Nothing;
        const auto sums = sums_kernel<T>(attrs, second, leaves);
        const int vectors = static_cast<int>(o.stored / Vector<T>::kSize);
        const int blocks = walk_blocks(device, o.pixels, vectors);
        return [=](const StepContext&) {
          sums<<<grid.blocks, kThreads, 0, device.stream>>>(o, grid.lanes, device.context, device.counters);
          MILLRACE_LAUNCHED("backward_sums");
          if (dresidual_copy && dresidual_copy != o.dy) {
            MILLRACE_CUDA(cudaMemcpyAsync(dresidual_copy, o.dy, static_cast<size_t>(o.pixels * o.stored) * sizeof(T),
                                          cudaMemcpyDeviceToDevice, device.stream));
          }
          Operands<T> rest = o;
          if (keeps) rest.dy = o.dresidual;
          const auto kernel = keeps         ? input_gradient<false, false, T>
                              : from_output ? input_gradient<true, true, T>
                              : attrs.relu  ? input_gradient<true, false, T>
                                            : input_gradient<false, false, T>;
          kernel<<<blocks, 256, 0, device.stream>>>(rest, vectors, device.context);
          MILLRACE_LAUNCHED("input_gradient");
        };
      }};
}

Kernel prepare_weight_grad(const Device& device, const NodeView& view) {
  const int channels = static_cast<int>(view.write(0).elements());
  return {"copy", 0, [=](const Bindings& bind) -> Task {
            const auto* dsums = bind.read<float>(0);
            auto *dscale = bind.write<float>(0), *dshift = bind.write<float>(1);
            return [=](const StepContext&) {
              copy_sums<<<1, 256, 0, device.stream>>>(dsums, dscale, dshift, channels,
                                                      static_cast<int>(padded(channels)));
              MILLRACE_LAUNCHED("copy_sums");
            };
          }};
}

}  // namespace

Kernel prepare_batch_norm(const Device& device, const NodeView& view) {
  return with_type(dtype_of_read(view, 0), [&]<typename T>() -> Kernel {
    switch (view.node.pass) {
      case Pass::Forward:
      case Pass::Evaluate: return prepare_forward<T>(device, view);
      case Pass::InputGrad: return prepare_input_grad<T>(device, view);
      case Pass::WeightGrad: return prepare_weight_grad(device, view);
      default: refuse_pass(view);
    }
  });
}

}  // namespace millrace::backend::cuda
