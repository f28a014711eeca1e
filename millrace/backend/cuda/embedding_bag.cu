// The mean of the table's rows that a sample's tokens name. Tokens below zero are none; one that the table does not
// have makes the mean NaN, which stops the run.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 128;
constexpr int kWarp = 32;

struct Geometry {
  int rows, tokens, entries, width;
};

__device__ float share_of(const Geometry& g, const int32_t* row) {
  int count = 0;
  for (int t = 0; t < g.tokens; ++t) count += row[t] >= 0;
  return count == 0 ? 0.0f : 1.0f / static_cast<float>(count);
}

// A block for each sample, a thread for some of its columns.
template <typename T>
__global__ void embedding_bag_forward(Geometry g, const T* table, const int32_t* tokens, T* y) {
  const int32_t* row = tokens + int64_t{blockIdx.x} * g.tokens;
  const float share = share_of(g, row);
  for (int d = static_cast<int>(threadIdx.x); d < g.width; d += kThreads) {
    float sum = 0;
    for (int t = 0; t < g.tokens; ++t) {
      const int32_t token = row[t];
      if (token >= g.entries) sum = NAN;
      if (token >= 0 && token < g.entries) sum += to_float(table[int64_t{token} * g.width + d]);
    }
    y[int64_t{blockIdx.x} * g.width + d] = from_float<T>(sum * share);
  }
}

// A warp for each entry of the table: it looks through all tokens, 32 at once, and adds those that name the entry in
// their order, so that a sum has the same bits every time.
template <typename T, typename U>
__global__ void embedding_bag_weight_grad(Geometry g, const T* dy, const int32_t* tokens, U* dtable) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t entry = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (entry >= g.entries) return;
  const int64_t all = int64_t{g.rows} * g.tokens;
  for (int first = 0; first < g.width; first += kWarp) {
    const int d = first + lane;
    float sum = 0;
    for (int64_t t = 0; t < all; t += kWarp) {
      const bool names = t + lane < all && tokens[t + lane] == entry;
      for (unsigned left = __ballot_sync(~0u, names); left != 0; left &= left - 1) {
        const int64_t n = (t + __ffs(static_cast<int>(left)) - 1) / g.tokens;
        const float share = share_of(g, tokens + n * g.tokens);
        if (d < g.width) sum += share * to_float(dy[n * g.width + d]);
      }
    }
    // Rounded as a gradient of one worker is, also where it is kept in more digits for a sum over replicas.
    if (d < g.width) dtable[entry * g.width + d] = from_float<U>(to_float(from_float<T>(sum)));
  }
}

}  // namespace

Kernel prepare_embedding_bag(const Device& device, const NodeView& view) {
  const bool forward = view.node.pass == Pass::Forward || view.node.pass == Pass::Evaluate;
  if (!forward && view.node.pass != Pass::WeightGrad) refuse_pass(view);
  const Shape& table = forward ? view.read(0) : view.write(0);
  const Geometry g{static_cast<int>(view.read(1)[0]), static_cast<int>(view.read(1)[1]), static_cast<int>(table[0]),
                   static_cast<int>(table[1])};
  const DType dtype = dtype_of_read(view, 0), out_dtype = dtype_of_write(view, 0);
  Kernel kernel;
  kernel.algorithm = forward ? "block a sample" : "warp an entry";
  kernel.bind = [=](const Bindings& at) {
    const auto* tokens = at.read<int32_t>(1);
    return with_type(dtype, [&]<typename T>() -> Task {
      const T* first = at.read<T>(0);
      if (forward) {
        T* y = at.write<T>(0);
        return [=](const StepContext&) {
          embedding_bag_forward<<<g.rows, kThreads, 0, device.stream>>>(g, first, tokens, y);
          MILLRACE_LAUNCHED("embedding_bag_forward");
        };
      }
      return with_type(out_dtype, [&]<typename U>() -> Task {
        U* dtable = at.write<U>(0);
        const int blocks = (g.entries + kThreads / kWarp - 1) / (kThreads / kWarp);
        return [=](const StepContext&) {
          embedding_bag_weight_grad<<<blocks, kThreads, 0, device.stream>>>(g, first, tokens, dtable);
          MILLRACE_LAUNCHED("embedding_bag_weight_grad");
        };
      });
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
