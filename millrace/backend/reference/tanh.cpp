#include <cmath>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_tanh(const NodeView& view) {
  const int64_t elements = view.read(0).elements();
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* x = at.read<T>(0);
        T* y = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t e = 0; e < elements; ++e) y[e] = static_cast<T>(std::tanh(static_cast<double>(x[e])));
        };
      });
    case graph::Pass::InputGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *dy = at.read<T>(0), *y = at.read<T>(1);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t e = 0; e < elements; ++e)
            dx[e] = static_cast<T>(dy[e] * (1.0 - static_cast<double>(y[e]) * y[e]));
        };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
