// Pixels lie one after another already, as tokens do: only the first token comes before those of each sample, and
// padding channels go.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/rows.cuh"
#include "millrace/backend/cuda/sample_sums.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

struct Geometry {
  int64_t samples, pixels, width, stored;  // stored: channels of a pixel, with padding

  explicit Geometry(const Shape& tokens)
      : samples(tokens[0]), pixels(tokens[1] - 1), width(tokens[2]), stored(padded(tokens[2])) {}
  __host__ __device__ int64_t length() const { return 1 + pixels; }
};

template <typename T>
struct TokenOfImage {
  Geometry g;
  const T *x, *w;
  __device__ RowSource<T> operator()(int64_t row) const {
    const int64_t sample = row / g.length(), token = row % g.length();
    if (token == 0) return {w};
    return {x + (sample * g.pixels + token - 1) * g.stored};
  }
};

template <typename T>
struct PixelGradient {
  Geometry g;
  const T* dy;
  __device__ RowSource<T> operator()(int64_t pixel) const {
    return {dy + (pixel / g.pixels * g.length() + 1 + pixel % g.pixels) * g.width};
  }
};

}  // namespace

Kernel prepare_image_tokens(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass == Pass::Update) refuse_pass(view);
  const bool forward = pass == Pass::Forward || pass == Pass::Evaluate;
  const Geometry g(forward ? view.write(0) : view.read(0));
  const DType dtype = dtype_of_read(view, 0), out_dtype = dtype_of_write(view, 0);
  Kernel kernel;
  kernel.algorithm = pass == Pass::WeightGrad ? "sums over samples" : "rows";
  kernel.bind = [=](const Bindings& at) -> Task {
    if (pass == Pass::WeightGrad) {
      const SampleSums sums{g.samples, g.length() * g.width, g.width, g.width};
      return sample_sums_task(device, sums, g.width, dtype, out_dtype, at);
    }
    return with_type(dtype, [&]<typename T>() -> Task {
      const T* from = at.read<T>(0);
      T* to = at.write<T>(0);
      if (!forward) {
        return copy_rows_task(device, {g.samples * g.pixels, g.width, g.stored}, PixelGradient<T>{g, from}, to);
      }
      const TokenOfImage<T> source{g, from, at.read<T>(1)};
      return copy_rows_task(device, {g.samples * g.length(), g.width, g.width}, source, to);
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
