// LAMB (You et al. 2019) over many parameters: one launch moves the means and sums the squares of weight and direction
// chunk by chunk, a small one makes each parameter's ratio of them, the last makes the direction once more and the
// step. What has no decay keeps Adam's length.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/means.cuh"
#include "millrace/backend/cuda/multi_tensor.cuh"

namespace millrace::backend::cuda {
namespace {

using namespace multi_tensor;

// Sums of squares.
struct Norms {
  double weight, direction;
};

// A thread's own sums are short enough for f32.
__global__ void __launch_bounds__(kThreads) lamb_means(const Parameter* parameters, const Chunk* chunks, MeansRule rule,
                                                       const StepContext* context, Agreed agreed, Norms* norms) {
  const Chunk chunk = chunks[blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const float factor = agreed.gradient_factor();
  const bool skips = agreed.skips();
  const MeansCorrection correction(rule, agreed.steps(*context));
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  float weights = 0, directions = 0;
  for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
    if (!skips) {
      const Four gradient = load_four(p.gradient, i, p.gradient_type), weight = load_weight(p, i);
      Four m = load_four(p.velocity, i, Type::F32), v = load_four(p.second_moment, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (i + k >= p.elements) break;  // nobody writes the gradient of a plain parameter's padding
        move_means(rule, gradient.at[k] * factor, m.at[k], v.at[k]);
        const float w = weight.at[k], u = adam_direction(rule, correction, m.at[k], v.at[k]) + p.decay * w;
        weights += w * w;
        directions += u * u;
      }
      store_four(p.velocity, i, Type::F32, m);
      store_four(p.second_moment, i, Type::F32, v);
    }
    if (p.clears_gradient) store_four(p.gradient, i, p.gradient_type, Four{});
  }
  const double weight = block_sum(weights), direction = block_sum(directions);
  if (threadIdx.x == 0) norms[blockIdx.x] = {weight, direction};
}

// One block for each parameter.
__global__ void __launch_bounds__(kThreads)
    lamb_ratios(const Parameter* parameters, const Norms* norms, float* ratios) {
  const Parameter p = parameters[blockIdx.x];
  double weights = 0, directions = 0;
  for (int c = threadIdx.x; c < p.num_chunks; c += kThreads) {
    const Norms chunk = norms[p.first_chunk + c];
    weights += chunk.weight;
    directions += chunk.direction;
  }
  weights = block_sum(weights);
  directions = block_sum(directions);
  if (threadIdx.x != 0) return;
  const bool adapts = p.decay != 0 && weights > 0 && directions > 0;
  ratios[blockIdx.x] = adapts ? static_cast<float>(sqrt(weights) / sqrt(directions)) : 1.0f;
}

// From the last chunk to the first, which the means have left in the cache.
__global__ void __launch_bounds__(kThreads) lamb_step(const Parameter* parameters, const Chunk* chunks, MeansRule rule,
                                                      const StepContext* context, Agreed agreed, const float* ratios) {
  const Chunk chunk = chunks[gridDim.x - 1 - blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const float rate = context->learning_rate * p.rate * ratios[chunk.parameter];
  const bool skips = agreed.skips();
  const MeansCorrection correction(rule, agreed.steps(*context));
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
    Four weight = load_weight(p, i);
    if (!skips) {
      const Four m = load_four(p.velocity, i, Type::F32), v = load_four(p.second_moment, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (i + k >= p.elements) break;
        const float w = weight.at[k];
        weight.at[k] = w - rate * (adam_direction(rule, correction, m.at[k], v.at[k]) + p.decay * w);
      }
      if (p.master) store_four(p.master, i, Type::F32, weight);
    }
    store_four(p.weight, i, p.weight_type, weight);  // the next version, whether or not it is another memory
  }
}

}  // namespace

Kernel prepare_lamb(const Device& device, const std::vector<NodeView>& views, const OptimizerOptions& options) {
  const MeansRule rule(options);
  Group group(views, options);
  const size_t norm_bytes = group.num_chunks() * sizeof(Norms);
  const size_t bytes = norm_bytes + group.num_parameters() * sizeof(float);
  return {"many at once", bytes, [=, group = std::move(group)](const Bindings& bind) -> Task {
            const Agreed agreed = group.agreed(bind);
            auto* norms = static_cast<Norms*>(bind.scratch);
            auto* ratios = reinterpret_cast<float*>(static_cast<std::byte*>(bind.scratch) + norm_bytes);
            return [=, tables = group.bind(bind)](const StepContext&) {
              const Parameter* parameters = tables->parameters();
              lamb_means<<<tables->num_chunks(), kThreads, 0, device.stream>>>(parameters, tables->chunks(), rule,
                                                                               device.context, agreed, norms);
              MILLRACE_LAUNCHED("lamb_means");
              lamb_ratios<<<tables->num_parameters(), kThreads, 0, device.stream>>>(parameters, norms, ratios);
              MILLRACE_LAUNCHED("lamb_ratios");
              lamb_step<<<tables->num_chunks(), kThreads, 0, device.stream>>>(parameters, tables->chunks(), rule,
                                                                              device.context, agreed, ratios);
              MILLRACE_LAUNCHED("lamb_step");
            };
          }};
}

}  // namespace millrace::backend::cuda
