// Adam with decoupled weight decay (torch.optim.AdamW) over many parameters in one launch and one pass.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/means.cuh"
#include "millrace/backend/cuda/multi_tensor.cuh"

namespace millrace::backend::cuda {
namespace {

using namespace multi_tensor;

__global__ void __launch_bounds__(kThreads) adam_step(const Parameter* parameters, const Chunk* chunks, MeansRule rule,
                                                      const StepContext* context, Agreed agreed) {
  const Chunk chunk = chunks[blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const float rate = context->learning_rate * p.rate, factor = agreed.gradient_factor(), keep = 1 - rate * p.decay;
  const bool skips = agreed.skips();
  const MeansCorrection correction(rule, agreed.steps(*context));
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
    Four weight = load_weight(p, i);
    if (!skips) {
      const Four gradient = load_four(p.gradient, i, p.gradient_type);
      Four m = load_four(p.velocity, i, Type::F32), v = load_four(p.second_moment, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (i + k >= p.elements) break;  // nobody writes the gradient of a plain parameter's padding
        move_means(rule, gradient.at[k] * factor, m.at[k], v.at[k]);
        weight.at[k] = keep * weight.at[k] - rate * adam_direction(rule, correction, m.at[k], v.at[k]);
      }
      store_four(p.velocity, i, Type::F32, m);
      store_four(p.second_moment, i, Type::F32, v);
      if (p.master) store_four(p.master, i, Type::F32, weight);
    }
    store_four(p.weight, i, p.weight_type, weight);  // the next version, whether or not it is another memory
    if (p.clears_gradient) store_four(p.gradient, i, p.gradient_type, Four{});
  }
}

}  // namespace

Kernel prepare_adam(const Device& device, const std::vector<NodeView>& views, const OptimizerOptions& options) {
  const MeansRule rule(options);
  return {"many at once", 0, [=, group = Group(views, options)](const Bindings& bind) -> Task {
            const Agreed agreed = group.agreed(bind);
            return [=, tables = group.bind(bind)](const StepContext&) {
              adam_step<<<tables->num_chunks(), kThreads, 0, device.stream>>>(tables->parameters(), tables->chunks(),
                                                                              rule, device.context, agreed);
              MILLRACE_LAUNCHED("adam_step");
            };
          }};
}

}  // namespace millrace::backend::cuda
