#include <algorithm>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

Kernel prepare_select_token(const NodeView& view) {
  const int64_t index = view.attrs<graph::SelectTokenAttrs>().index;
  const bool backward = view.node.pass == graph::Pass::InputGrad;
  if (view.node.pass == graph::Pass::WeightGrad || view.node.pass == graph::Pass::Update) refuse_pass(view);
  const Shape& x_shape = backward ? view.write(0) : view.read(0);
  const int64_t samples = x_shape[0], length = x_shape[1], width = x_shape[2];
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* from = at.read<T>(0);
    T* to = at.write<T>(0);
    if (backward) {
      return [=](const StepContext&) {
        std::fill_n(to, samples * length * width, T{0});
        for (int64_t n = 0; n < samples; ++n) {
          std::copy_n(from + n * width, width, to + (n * length + index) * width);
        }
      };
    }
    return [=](const StepContext&) {
      for (int64_t n = 0; n < samples; ++n) {
        std::copy_n(from + (n * length + index) * width, width, to + n * width);
      }
    };
  });
}

}  // namespace millrace::backend::reference
