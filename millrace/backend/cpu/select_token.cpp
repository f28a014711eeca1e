#include <algorithm>

#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {

Kernel prepare_select_token(const NodeView& view) {
  const int64_t index = view.attrs<graph::SelectTokenAttrs>().index;
  const bool backward = view.node.pass == graph::Pass::InputGrad;
  const Shape& x_shape = backward ? view.write(0) : view.read(0);
  const int64_t samples = x_shape[0], length = x_shape[1], width = x_shape[2];
  if (backward) {
    return {"loop", 0, [=](const Bindings& bind) -> Task {
              return [=, dy = bind.read<float>(0), dx = bind.write<float>(0)](const StepContext&) {
#pragma omp parallel for schedule(static)
                for (int64_t row = 0; row < samples * length; ++row) {
                  if (row % length == index) {
                    std::copy_n(dy + row / length * width, width, dx + row * width);
                  } else {
                    std::fill_n(dx + row * width, width, 0.0f);
                  }
                }
              };
            }};
  }
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            return [=, x = bind.read<float>(0), y = bind.write<float>(0)](const StepContext&) {
              for (int64_t n = 0; n < samples; ++n) {
                std::copy_n(x + (n * length + index) * width, width, y + n * width);
              }
            };
          }};
}

}  // namespace millrace::backend::cpu
