// Add of two values or two gradients, in whichever pass, and Accumulate of a gradient onto its total.
#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_add(const NodeView& view) {
  const int64_t elements = view.read(0).elements();
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T *a = at.read<T>(0), *b = at.read<T>(1);
    T* sum = at.write<T>(0);
    return [=](const StepContext&) {
      for (int64_t e = 0; e < elements; ++e) sum[e] = a[e] + b[e];
    };
  });
}

Kernel prepare_accumulate(const NodeView& view) {
  const int64_t elements = view.read(0).elements();
  // A part that is itself a sum over micro-batches starts the next step from zero.
  const bool clears_part = view.node.pass == graph::Pass::Update &&
                           view.program.buffers[view.node.reads[1]].role == graph::BufferRole::GradientSum;
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    T *total = at.write<T>(0), *part = static_cast<T*>(at.reads[1]);
    return [=](const StepContext&) {
      for (int64_t e = 0; e < elements; ++e) {
        total[e] += part[e];
        if (clears_part) part[e] = 0;
      }
    };
  });
}

}  // namespace millrace::backend::reference
