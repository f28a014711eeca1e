// A transpose of the last two axes, the last of which is as short as a span has ends: a thread for each element.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;

struct Geometry {
  int64_t samples, length, spans, planes;
  __host__ __device__ int64_t elements() const { return samples * length * spans; }
};

// i counts N x K x L, which is y and dy.
template <bool kBackward, typename T>
__global__ void span_logits(Geometry g, const T* from, const int32_t* tokens, T* to) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < g.elements(); i += stride) {
    const int64_t row = i / g.length, place = i % g.length, sample = row / g.spans, span = row % g.spans;
    const int64_t x = (sample * g.length + place) * g.spans + span;
    const bool is_token = tokens[sample * g.planes * g.length + place] >= 0;
    if (kBackward) {
      to[x] = is_token ? from[i] : from_float<T>(0);
    } else {
      to[i] = is_token ? from[x] : from_float<T>(-1e4f);
    }
  }
}

}  // namespace

Kernel prepare_span_logits(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::InputGrad) refuse_pass(view);
  const bool backward = pass == Pass::InputGrad;
  const Shape &x = backward ? view.write(0) : view.read(0), &tokens_shape = view.read(1);
  const Geometry g{x[0], x[1], x[2], tokens_shape.rank() == 3 ? tokens_shape[1] : 1};
  Kernel kernel;
  kernel.algorithm = "elements";
  kernel.bind = [=, dtype = dtype_of_read(view, 0)](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() -> Task {
      const T* from = at.read<T>(0);
      const auto* tokens = at.read<int32_t>(1);
      T* to = at.write<T>(0);
      return [=](const StepContext&) {
        const auto run = backward ? span_logits<true, T> : span_logits<false, T>;
        run<<<grid_for(device, g.elements(), kThreads), kThreads, 0, device.stream>>>(g, from, tokens, to);
        MILLRACE_LAUNCHED("span_logits");
      };
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
