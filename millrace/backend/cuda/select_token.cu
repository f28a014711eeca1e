#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/rows.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

struct Geometry {
  int64_t samples, length, width, index;
};

template <typename T>
struct Selected {
  Geometry g;
  const T* x;
  __device__ RowSource<T> operator()(int64_t sample) const { return {x + (sample * g.length + g.index) * g.width}; }
};

template <typename T>
struct SelectedGradient {
  Geometry g;
  const T* dy;
  __device__ RowSource<T> operator()(int64_t row) const {
    if (row % g.length != g.index) return {};
    return {dy + row / g.length * g.width};
  }
};

}  // namespace

Kernel prepare_select_token(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::InputGrad) refuse_pass(view);
  const bool backward = pass == Pass::InputGrad;
  const Shape& x = backward ? view.write(0) : view.read(0);
  const Geometry g{x[0], x[1], x[2], view.attrs<graph::SelectTokenAttrs>().index};
  Kernel kernel;
  kernel.algorithm = "rows";
  kernel.bind = [=, dtype = dtype_of_read(view, 0)](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() -> Task {
      const T* from = at.read<T>(0);
      T* to = at.write<T>(0);
      if (backward) {
        return copy_rows_task(device, {g.samples * g.length, g.width, g.width}, SelectedGradient<T>{g, from}, to);
      }
      return copy_rows_task(device, {g.samples, g.width, g.width}, Selected<T>{g, from}, to);
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
