// Stochastic gradient descent over many parameters in one launch: decay, momentum, master and working weight in one
// pass. With a loss scale, an update that overflowed changes nothing.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/multi_tensor.cuh"

namespace millrace::backend::cuda {
namespace {

using namespace multi_tensor;

struct Rule {
  float momentum;
  bool nesterov, decoupled;
};

__global__ void __launch_bounds__(kThreads)
    sgd_step(const Parameter* parameters, const Chunk* chunks, Rule rule, const StepContext* context, Agreed agreed) {
  const Chunk chunk = chunks[blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const float rate = context->learning_rate * p.rate, factor = agreed.gradient_factor();
  const bool skips = agreed.skips();
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
    const Four gradient = load_four(p.gradient, i, p.gradient_type);
    Four weight = load_weight(p, i);
    if (!skips) {
      Four velocity = {};
      if (p.velocity) velocity = load_four(p.velocity, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (i + k >= p.elements) break;  // nobody writes the gradient of a plain parameter's padding
        float step = gradient.at[k] * factor;
        float w = weight.at[k];
        if (rule.decoupled) {
          w *= 1 - rate * p.decay;
        } else {
          step += p.decay * w;
        }
        if (p.velocity) {
          const float v = rule.momentum * velocity.at[k] + step;
          step = rule.nesterov ? step + rule.momentum * v : v;
          velocity.at[k] = v;
        }
        weight.at[k] = w - rate * step;
      }
      if (p.velocity) store_four(p.velocity, i, Type::F32, velocity);
      if (p.master) store_four(p.master, i, Type::F32, weight);
    }
    store_four(p.weight, i, p.weight_type, weight);  // the next version, whether or not it is another memory
    if (p.clears_gradient) store_four(p.gradient, i, p.gradient_type, Four{});
  }
}

}  // namespace

Kernel prepare_sgd(const Device& device, const std::vector<NodeView>& views, const OptimizerOptions& options) {
  const Rule rule{options.momentum, options.nesterov, options.decoupled};
  return {"many at once", 0, [=, group = Group(views, options)](const Bindings& bind) -> Task {
            const Agreed agreed = group.agreed(bind);
            return [=, tables = group.bind(bind)](const StepContext&) {
              sgd_step<<<tables->num_chunks(), kThreads, 0, device.stream>>>(tables->parameters(), tables->chunks(),
                                                                             rule, device.context, agreed);
              MILLRACE_LAUNCHED("sgd_step");
            };
          }};
}

}  // namespace millrace::backend::cuda
