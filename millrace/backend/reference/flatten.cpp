#include <algorithm>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {

// Row-major memory is already flat: both passes only move the bytes, where they move at all.
Kernel prepare_flatten(const NodeView& view) {
  const int64_t elements = view.read(0).elements();
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate:
    case graph::Pass::InputGrad:
      return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
        const T* from = at.read<T>(0);
        T* to = at.write<T>(0);
        return [=](const StepContext&) {
          if (from != to) std::copy_n(from, elements, to);
        };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
