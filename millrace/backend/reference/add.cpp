// Add of two values or two gradients, and Accumulate of a gradient onto its total: the same sum, in whichever pass.
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

Kernel prepare_accumulate(const NodeView& view) { return prepare_add(view); }

}  // namespace millrace::backend::reference
