#include "millrace/backend/dropout_mask.h"
#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

// The gradient goes through the mask exactly as the value did, so both passes are one kernel.
Kernel prepare_dropout(const NodeView& view) {
  if (view.node.pass != graph::Pass::Forward && view.node.pass != graph::Pass::InputGrad) refuse_pass(view);
  const DropoutMask mask(view.node.name, view.attrs<graph::DropoutAttrs>().probability);
  const int64_t rows = view.read(0)[0];
  const int64_t row_elements = view.read(0).elements() / rows;
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* from = at.read<T>(0);
    T* to = at.write<T>(0);
    return [=](const StepContext& context) {
      for (int64_t r = 0; r < rows; ++r) {
        const RandomStream random = mask.row(context, r);
        for (int64_t e = 0; e < row_elements; ++e) {
          const bool keep = mask.keeps(random.at(e / 4)[e % 4]);
          const int64_t i = r * row_elements + e;
          to[i] = keep ? static_cast<T>(from[i] * mask.scale()) : T{0};
        }
      }
    };
  });
}

}  // namespace millrace::backend::reference
