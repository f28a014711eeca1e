// What is known of all gradients before the first step: whether they are finite and how long they are; and the loss
// scale, which follows them.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/multi_tensor.cuh"

namespace millrace::backend::cuda {
namespace {

using namespace multi_tensor;

// Whether one of two sixteen-bit numbers has the exponent of infinity and NaN.
__device__ bool has_exponent(uint32_t pair, uint32_t exponent) {
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// The chunk's loads are all on their way together: there is nothing else to do meanwhile.
__device__ bool finds_bad_pairs(const uint16_t* gradient, int64_t begin, int64_t end, uint32_t exponent) {
  constexpr int kNumbers = 8, kLoads = kChunk / (kThreads * kNumbers);
  uint4 words[kLoads];
  bool bad = false;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int64_t i = begin + (j * kThreads + threadIdx.x) * kNumbers;
    words[j] = {};
    if (i + kNumbers <= end) {
      words[j] = __ldcg(reinterpret_cast<const uint4*>(gradient + i));
    } else {
      for (int64_t k = i; k < end; ++k) bad |= has_exponent(gradient[k], exponent);
    }
  }
#pragma unroll
  for (const uint4& w : words) {
    for (uint32_t pair : {w.x, w.y, w.z, w.w}) bad |= has_exponent(pair, exponent);
  }
  return bad;
}

// Counts blocks that found something: only zero or not zero is read. Called by all threads.
__device__ void report(bool bad, float* agreement) {
  if (__syncthreads_or(bad) && threadIdx.x == 0) atomicAdd(agreement + graph::kOverflow, 1.0f);
}

// From the last parameter to the first, so that the update finds those it begins with in the cache.
__global__ void __launch_bounds__(kThreads)
    check_finite(const Parameter* parameters, const Chunk* chunks, float* agreement) {
  const Chunk chunk = chunks[gridDim.x - 1 - blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  bool bad = false;
  if (p.gradient_type == Type::F32) {
    for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
      const Four gradient = load_four(p.gradient, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) bad |= i + k < p.elements && !isfinite(gradient.at[k]);
    }
  } else {
    const uint32_t exponent = p.gradient_type == Type::F16 ? 0x7C00u : 0x7F80u;
    bad = finds_bad_pairs(static_cast<const uint16_t*>(p.gradient), chunk.begin, end, exponent);
  }
  report(bad, agreement);
}

struct Squares {
  float sum = 0;  // of one thread: short enough for f32
  bool bad = false;
};

// Half of a chunk's loads are on their way together: behind the end others are made again rather than none, so that
// there is no branch between them.
template <Type kType>
__device__ Squares squares_of(const void* gradient, int64_t begin, int64_t end) {
  constexpr int kLoads = 8, kStride = kThreads * kEach;
  Squares squares;
  for (int64_t first = begin + threadIdx.x * kEach; first < end; first += kLoads * kStride) {
    Four fours[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int64_t i = first + j * kStride;
      fours[j] = load_four(gradient, i < end ? i : first, kType);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const float value = first + j * kStride + k < end ? fours[j].at[k] : 0.0f;
        squares.sum += value * value;
        squares.bad |= !isfinite(value);
      }
    }
  }
  return squares;
}

// In the order of check_finite, for the same reason; the sums lie in the order of the chunks.
__global__ void __launch_bounds__(kThreads)
    sum_squares(const Parameter* parameters, const Chunk* chunks, bool checks, double* sums, float* agreement) {
  const int index = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const Chunk chunk = chunks[index];
  const Parameter p = parameters[chunk.parameter];
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  Squares squares;
  switch (p.gradient_type) {
    case Type::F32: squares = squares_of<Type::F32>(p.gradient, chunk.begin, end); break;
    case Type::F16: squares = squares_of<Type::F16>(p.gradient, chunk.begin, end); break;
    case Type::BF16: squares = squares_of<Type::BF16>(p.gradient, chunk.begin, end); break;
  }
  const double sum = block_sum(squares.sum);
  if (threadIdx.x == 0) sums[index] = sum;
  if (checks) report(squares.bad, agreement);
}

// One block for each parameter.
__global__ void __launch_bounds__(kThreads)
    gather_squares(const Parameter* parameters, const double* sums, float* agreement) {
  const Parameter p = parameters[blockIdx.x];
  double sum = 0;
  if (p.counts) {
    for (int c = threadIdx.x; c < p.num_chunks; c += kThreads) sum += sums[p.first_chunk + c];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) agreement[p.square] = static_cast<float>(sum);
}

// One block. A norm that is not a number makes a factor that is none; `most` 0: any norm is allowed.
__global__ void __launch_bounds__(kThreads)
    clip_norm(float* agreement, int64_t fields, bool scales, float most, float* watch) {
  const double unscale = scales ? agreement[graph::kInverseScale] : 1.0f;
  const bool watches = watch && !(scales && agreement[graph::kOverflow] != 0);
  double sum = 0;
  for (int64_t i = graph::kSquares + threadIdx.x; i < fields; i += kThreads) {
    sum += agreement[i];
    if (watches) watch[i - graph::kSquares] += static_cast<float>(agreement[i] * unscale * unscale);
    agreement[i] = 0;  // for the next sum over stages
  }
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const auto norm = static_cast<float>(sqrt(sum) * unscale);
  const float clip = most == 0 ? 1 : most / (norm + 1e-6f);
  agreement[graph::kNorm] = norm;
  agreement[graph::kClip] = clip > 1 ? 1 : clip;
}

__global__ void adjust_scale(float* agreement, ScaleRule rule) {
  float scale = agreement[graph::kScale];
  if (agreement[graph::kOverflow] != 0) {
    scale = fmaxf(scale / rule.factor, rule.floor);
    agreement[graph::kGoodSteps] = 0;
    agreement[graph::kSkippedSteps] += 1;
  } else if (++agreement[graph::kGoodSteps] >= static_cast<float>(rule.interval)) {
    if (isfinite(scale * rule.factor)) scale *= rule.factor;
    agreement[graph::kGoodSteps] = 0;
  }
  agreement[graph::kScale] = scale;
  agreement[graph::kInverseScale] = 1 / scale;
  agreement[graph::kOverflow] = 0;
}

}  // namespace

Kernel prepare_check_finite(const Device& device, const std::vector<NodeView>& views) {
  return {"many at once", 0, [=, group = Group(views, {})](const Bindings& bind) -> Task {
            float* agreement = group.agreement(bind);
            return [=, tables = group.bind(bind)](const StepContext&) {
              check_finite<<<tables->num_chunks(), kThreads, 0, device.stream>>>(tables->parameters(), tables->chunks(),
                                                                                 agreement);
              MILLRACE_LAUNCHED("check_finite");
            };
          }};
}

Kernel prepare_sum_squares(const Device& device, const std::vector<NodeView>& views) {
  Group group(views, {});
  const size_t bytes = group.num_chunks() * sizeof(double);
  return {"many at once", bytes, [=, group = std::move(group)](const Bindings& bind) -> Task {
            const bool checks = group.agreed(bind).scales;
            float* agreement = group.agreement(bind);
            auto* sums = static_cast<double*>(bind.scratch);
            return [=, tables = group.bind(bind)](const StepContext&) {
              if (tables->num_chunks() > 0) {
                sum_squares<<<tables->num_chunks(), kThreads, 0, device.stream>>>(
                    tables->parameters(), tables->chunks(), checks, sums, agreement);
                MILLRACE_LAUNCHED("sum_squares");
              }
              gather_squares<<<tables->num_parameters(), kThreads, 0, device.stream>>>(tables->parameters(), sums,
                                                                                       agreement);
              MILLRACE_LAUNCHED("gather_squares");
            };
          }};
}

Kernel prepare_clip_norm(const Device& device, const NodeView& view, const OptimizerOptions& options) {
  const int64_t fields = view.read(0).elements();
  const bool scales = view.graph.dtype == DType::F16;
  const bool watches = view.num_writes() > 1;
  return {"one block", 0, [=, most = options.clip_norm](const Bindings& bind) -> Task {
            auto* agreement = bind.write<float>(0);
            float* watch = watches ? bind.write<float>(1) : nullptr;
            return [=](const StepContext&) {
              clip_norm<<<1, kThreads, 0, device.stream>>>(agreement, fields, scales, most, watch);
              MILLRACE_LAUNCHED("clip_norm");
            };
          }};
}

Kernel prepare_adjust_scale(const Device& device, const ScaleRule& rule) {
  return {"one thread", 0, [=](const Bindings& bind) -> Task {
            auto* agreement = bind.write<float>(0);
            return [=](const StepContext&) {
              adjust_scale<<<1, 1, 0, device.stream>>>(agreement, rule);
              MILLRACE_LAUNCHED("adjust_scale");
            };
          }};
}

}  // namespace millrace::backend::cuda
