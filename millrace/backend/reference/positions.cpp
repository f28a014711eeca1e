#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

// The first L of the places lie one after another: to each sample the same L x D numbers are added.
Kernel prepare_positions(const NodeView& view) {
  const int64_t samples = view.read(0)[0], sample = view.read(0)[1] * view.read(0)[2];
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *w = at.read<T>(1);
        T* y = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t n = 0; n < samples; ++n) {
            for (int64_t e = 0; e < sample; ++e) y[n * sample + e] = x[n * sample + e] + w[e];
          }
        };
      });
    case graph::Pass::WeightGrad: {
      const int64_t elements = view.write(0).elements();
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* dy = at.read<T>(0);
        T* dw = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t e = 0; e < elements; ++e) {
            double sum = 0;
            for (int64_t n = 0; e < sample && n < samples; ++n) sum += dy[n * sample + e];
            dw[e] = static_cast<T>(sum);
          }
        };
      });
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
