// To each sample the same L x D numbers are added, the first places of the table.
#include <algorithm>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/sample_sums.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int64_t kMostSamples = 65535;  // that a grid has: blocks stride over the rest

// Each pack is read before it is written, by one thread: y may lie over x.
template <int kSize, typename T>
__global__ void positions_forward(int64_t samples, int64_t sample, const T* x, const T* w, T* y) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kSize;
  if (first >= sample) return;
  const Pack<T, kSize> place = load_pack<kSize>(w + first);
  for (int64_t n = blockIdx.y; n < samples; n += gridDim.y) {
    Pack<T, kSize> value = load_pack<kSize>(x + n * sample + first);
#pragma unroll
    for (int k = 0; k < kSize; ++k) value.at[k] = from_float<T>(to_float(value.at[k]) + to_float(place.at[k]));
    store_pack(y + n * sample + first, value);
  }
}

template <typename T>
Task forward_task(const Device& device, const Shape& shape, const Bindings& at) {
  return with_pack<T>(shape[2], [&]<int kSize>() -> Task {
    const T *x = at.read<T>(0), *w = at.read<T>(1);
    T* y = at.write<T>(0);
    const int64_t samples = shape[0], sample = shape[1] * shape[2], block = int64_t{kThreads} * kSize;
    const dim3 grid(static_cast<unsigned>((sample + block - 1) / block),
                    static_cast<unsigned>(std::min(samples, kMostSamples)));
    return [=](const StepContext&) {
      positions_forward<kSize><<<grid, kThreads, 0, device.stream>>>(samples, sample, x, w, y);
      MILLRACE_LAUNCHED("positions_forward");
    };
  });
}

}  // namespace

Kernel prepare_positions(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::WeightGrad) refuse_pass(view);
  const Shape shape = view.read(0);
  const DType dtype = dtype_of_read(view, 0), out_dtype = dtype_of_write(view, 0);
  Kernel kernel;
  if (pass == Pass::WeightGrad) {
    const int64_t sample = shape[1] * shape[2];
    const SampleSums sums{shape[0], sample, sample, view.write(0).elements()};
    kernel.algorithm = "sums over samples";
    kernel.bind = [=](const Bindings& at) { return sample_sums_task(device, sums, shape[2], dtype, out_dtype, at); };
    return kernel;
  }
  kernel.algorithm = "packs";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() { return forward_task<T>(device, shape, at); });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
