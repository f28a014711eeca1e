// Probabilities are in f32, whatever the logits are. One block per row: what a row adds to the metrics goes to scratch,
// and the block that finishes last adds the rows in a fixed order: the sums are the same in every run.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"
#include "millrace/backend/loss_unit.h"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Geometry {
  int64_t rows, classes;
  float smoothing;

  __host__ __device__ int64_t elements() const { return rows * classes; }
  __device__ bool is_sample(int64_t row, int32_t label, const StepContext& context) const {
    return row < context.rows && label >= 0;
  }
  // The smoothed target's share of class k.
  __device__ float target(int64_t k, int32_t label) const {
    return (k == label ? 1 - smoothing : 0) + smoothing / static_cast<float>(classes);
  }
};

struct RowResult {
  float loss;
  int before;  // classes in front of the label's; -1: the row is not a sample
};

__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
template <typename N>
__device__ inline N sum(N a, N b) {
  return a + b;
}

// The same number for every thread, combined in a fixed order.
template <typename N, typename Combine>
__device__ inline N over_block(N value, Combine combine) {
  __shared__ N shared[kWarps];
  __syncthreads();  // the last call's numbers were read
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, shared[warp]);
  return value;
}

// Once per launch: whether this block is the last to come here, which sees what the others wrote before.
__device__ inline bool is_last_block(unsigned* counter) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == gridDim.x - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

__device__ inline void add_rows(const Geometry& g, const RowResult* results, double* metrics) {
  double added[graph::kNumMetrics] = {};
  for (int64_t row = threadIdx.x; row < g.rows; row += kThreads) {
    const RowResult result = results[row];
    if (result.before < 0) continue;
    added[graph::kLossSum] += rint(result.loss * kLossUnits) / kLossUnits;
    added[graph::kTop1] += result.before < 1;
    added[graph::kTop5] += result.before < 5;
    added[graph::kRows] += 1;
  }
  for (int i = 0; i < graph::kNumMetrics; ++i) {
    const double total = over_block(added[i], sum<double>);
    if (threadIdx.x == 0) metrics[i] += total;
  }
}

template <typename T>
__global__ void loss_forward(Geometry g, const StepContext* context, const T* logits, const int32_t* labels,
                             double* metrics, float* probabilities, RowResult* results, unsigned* counter) {
  const int64_t row = blockIdx.x;
  const T* z = logits + row * g.classes;
  float largest = -INFINITY;
  for (int64_t k = threadIdx.x; k < g.classes; k += kThreads) largest = fmaxf(largest, to_float(z[k]));
  largest = over_block(largest, larger);

  const int32_t label = labels[row];
  const bool sample = g.is_sample(row, label, *context), has_label = sample && label < g.classes;
  const float label_logit = has_label ? to_float(z[label]) : NAN;
  float exponentials = 0, distances = 0;
  int before = 0;
  for (int64_t k = threadIdx.x; k < g.classes; k += kThreads) {
    const float logit = to_float(z[k]);
    exponentials += expf(logit - largest);
    distances += logit - largest;
    before += logit > label_logit || (logit == label_logit && k < label);
  }
  exponentials = over_block(exponentials, sum<float>);
  distances = over_block(distances, sum<float>);
  before = over_block(before, sum<int>);

  if (threadIdx.x == 0) {
    const float log_sum = logf(exponentials);
    // A label that is no class makes the loss NaN, which stops the run: nothing can be thrown from here.
    float loss = -(1 - g.smoothing) * (label_logit - largest - log_sum);
    if (g.smoothing != 0) loss -= g.smoothing * (distances / static_cast<float>(g.classes) - log_sum);
    const bool may_count = !isnan(label_logit);
    results[row] = {loss, !sample ? -1 : may_count ? before : static_cast<int>(g.classes) + 5};
  }
  // After all have read the logits, as the probabilities may lie over them.
  if (probabilities) {
    for (int64_t k = threadIdx.x; k < g.classes; k += kThreads) {
      probabilities[row * g.classes + k] = expf(to_float(z[k]) - largest) / exponentials;
    }
    const int64_t end = g.elements() + threadIdx.x;
    if (row == 0 && end < padded(g.elements())) probabilities[end] = 0;
  }
  if (is_last_block(counter)) add_rows(g, results, metrics);
}

template <typename T>
__global__ void loss_input_grad(Geometry g, const StepContext* context, const float* probabilities,
                                const int32_t* labels, const float* loss_scale, T* dlogits) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float gradient = 0;
  if (i < g.elements()) {
    const int64_t row = i / g.classes;
    const int32_t label = labels[row];
    const float scale = static_cast<float>(context->inverse_samples) * (loss_scale ? loss_scale[graph::kScale] : 1);
    const float difference = probabilities[i] - g.target(i - row * g.classes, label);
    if (g.is_sample(row, label, *context)) gradient = difference * scale;
  }
  // Tensors so small that they fill the same piece of memory in both types may lie over each other: one block has them.
  __syncthreads();
  if (i < padded(g.elements())) dlogits[i] = from_float<T>(gradient);
}

template <typename T>
Task forward_task(const Device& device, const Geometry& g, bool has_probabilities, const Bindings& at) {
  const T* logits = at.read<T>(0);
  const int32_t* labels = at.read<int32_t>(1);
  double* metrics = at.write<double>(0);
  float* probabilities = has_probabilities ? at.write<float>(1) : nullptr;
  auto* results = static_cast<RowResult*>(at.scratch);
  return [=](const StepContext&) {
    loss_forward<<<static_cast<unsigned>(g.rows), kThreads, 0, device.stream>>>(
        g, device.context, logits, labels, metrics, probabilities, results, device.counters);
    MILLRACE_LAUNCHED("loss_forward");
  };
}

template <typename T>
Task input_grad_task(const Device& device, const Geometry& g, bool scaled, const Bindings& at) {
  const float* probabilities = at.read<float>(0);
  const int32_t* labels = at.read<int32_t>(1);
  const float* loss_scale = scaled ? at.read<float>(2) : nullptr;
  T* dlogits = at.write<T>(0);
  const auto blocks = static_cast<unsigned>((padded(g.elements()) + kThreads - 1) / kThreads);
  return [=](const StepContext&) {
    loss_input_grad<<<blocks, kThreads, 0, device.stream>>>(g, device.context, probabilities, labels, loss_scale,
                                                            dlogits);
    MILLRACE_LAUNCHED("loss_input_grad");
  };
}

}  // namespace

Kernel prepare_loss(const Device& device, const NodeView& view) {
  const Geometry g{view.read(0)[0], view.read(0)[1],
                   static_cast<float>(view.attrs<graph::LossAttrs>().label_smoothing)};
  Kernel kernel;
  switch (view.node.pass) {
    case Pass::Forward:
    case Pass::Evaluate: {
      kernel.algorithm = "rows";
      kernel.scratch_bytes = static_cast<size_t>(g.rows) * sizeof(RowResult);
      kernel.bind = [=, logits = dtype_of_read(view, 0),
                     has_probabilities = view.num_writes() > 1](const Bindings& at) {
        return with_type(logits, [&]<typename T>() { return forward_task<T>(device, g, has_probabilities, at); });
      };
      return kernel;
    }
    case Pass::InputGrad: {
      kernel.algorithm = "elements";
      kernel.bind = [=, dlogits = dtype_of_write(view, 0), scaled = view.num_reads() > 2](const Bindings& at) {
        return with_type(dlogits, [&]<typename T>() { return input_grad_task<T>(device, g, scaled, at); });
      };
      return kernel;
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::cuda
