#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_sgd_step(const NodeView& view, const SgdOptions& sgd) {
  const int64_t elements = view.read(0).elements();
  const bool has_velocity = view.num_reads() > 2;
  const float decay = sgd.decay_for(view.param_role(view.node.reads[0]));
  // A sum over micro-batches starts the next step from zero.
  const bool clears_gradient = view.program.buffers[view.node.reads[1]].role == graph::BufferRole::GradientSum;
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* old_w = at.read<T>(0);
    T* dw = static_cast<T*>(at.reads[1]);
    const T* old_velocity = has_velocity ? at.read<T>(2) : nullptr;
    T* w = at.write<T>(0);
    T* velocity = has_velocity ? at.write<T>(1) : nullptr;
    const T momentum = sgd.momentum;
    return [=](const StepContext& context) {
      const T rate = context.learning_rate;
      for (int64_t e = 0; e < elements; ++e) {
        T weight = old_w[e];
        T step = dw[e];
        if (sgd.decoupled) {
          weight *= 1 - rate * decay;
        } else {
          step += decay * weight;
        }
        if (has_velocity) {
          const T v = momentum * old_velocity[e] + step;
          step = sgd.nesterov ? step + momentum * v : v;
          velocity[e] = v;
        }
        w[e] = weight - rate * step;
        if (clears_gradient) dw[e] = 0;
      }
    };
  });
}

}  // namespace millrace::backend::reference
