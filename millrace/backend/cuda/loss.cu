// One block per row, which may be as wide as a vocabulary. Forward reads the logits once: each thread keeps the largest
// it has seen and the sum of exponentials less it, which shrinks when a larger one comes. What a row adds to the
// metrics goes to scratch, and the block that finishes last adds the rows in a fixed order: the sums are the same in
// every run. Rows without a label are not read at all.
#include <cfloat>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/pack.cuh"
#include "millrace/backend/cuda/row_pitch.h"
#include "millrace/backend/loss_unit.h"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kAhead = 4;  // packs that a thread reads before it looks at them

struct Geometry {
  int64_t rows, pitch, rows_per_sample;
  int classes;
  float smoothing;

  // Of a row that has no loss: below zero.
  __device__ int32_t label(const int32_t* labels, int64_t row, const StepContext& context) const {
    return row < context.rows * rows_per_sample ? labels[row] : -1;
  }
  __device__ float even() const { return smoothing / static_cast<float>(classes); }
};

// Of numbers up to about 80. What has few digits left is zero.
__device__ inline float exponential(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
}

// visit(pack, its first element) for the packs of a row that are this thread's. All are read before they are visited,
// each by the thread that visits it: the visit may write in their place.
template <int kSize, typename T, typename Visit>
__device__ inline void each_pack(const T* row, int packs, const Visit& visit) {
  int i = static_cast<int>(threadIdx.x);
  for (; i + (kAhead - 1) * kThreads < packs; i += kAhead * kThreads) {
    Pack<T, kSize> ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = load_pack<kSize>(row + (i + a * kThreads) * kSize);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) visit(ahead[a], (i + a * kThreads) * kSize);
  }
  for (; i < packs; i += kThreads) visit(load_pack<kSize>(row + i * kSize), i * kSize);
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
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
template <typename N>
__device__ inline N sum(N a, N b) {
  return a + b;
}

// What is known of a row. `before` counts the classes in front of the label's: of equals, the smaller index comes
// first, so that a class counts from the label's logit on if it is before the label, from the next larger number on if
// it is behind. Packs are either: the label's own is put right at the end.
struct Scan {
  float own;  // the label's logit; NaN: it has none
  bool smooths;
  float largest = -FLT_MAX, exponentials = 0, distances = 0;
  int before = 0;

  template <int kSize, typename T>
  __device__ void add(const Pack<T, kSize>& pack, float bound) {
    float z[kSize], most = largest, added = 0;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      z[k] = to_float(pack.at[k]);
      most = fmaxf(most, z[k]);
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      added += exponential(z[k] - most);
      before += z[k] >= bound;
    }
    exponentials = exponentials * exponential(largest - most) + added;
    largest = most;
    if (!smooths) return;
#pragma unroll
    for (int k = 0; k < kSize; ++k) distances += z[k] - own;
  }

  template <int kSize, typename T>
  __device__ void add_row(const T* row, int classes, int32_t label) {
    const float above = nextafterf(own, INFINITY);
    const auto add_pack = [&](const auto& pack, int first) { add(pack, first <= label ? own : above); };
    const int packs = classes / kSize, rest = packs * kSize;
    each_pack<kSize>(row, packs, add_pack);
    each_pack<1>(row + rest, classes - rest, [&](const Pack<T, 1>& pack, int first) { add_pack(pack, rest + first); });
    // Of the label's pack, itself and its equals behind it were counted.
    const int lane = static_cast<int>(threadIdx.x), end = label < rest ? label / kSize * kSize + kSize : label + 1;
    if (label + lane < end && to_float(row[label + lane]) == own) --before;
  }

  __device__ void combine_threads() {
    const float most = over_block(largest, larger);
    exponentials = over_block(exponentials * exponential(largest - most), sum<float>);
    largest = most;
    before = over_block(before, sum<int>);
    if (smooths) distances = over_block(distances, sum<float>);
  }
};

struct alignas(8) RowResult {
  float loss;
  int before;  // -1: the row has no loss
};

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
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < g.rows; row += kThreads) {
    const RowResult result = results[row];
    const bool has_loss = result.before >= 0;
    added[graph::kLossSum] += has_loss ? rint(result.loss * kLossUnits) / kLossUnits : 0.0;
    added[graph::kTop1] += has_loss && result.before < 1;
    added[graph::kTop5] += has_loss && result.before < 5;
    added[graph::kRows] += has_loss;
  }
  for (int i = 0; i < graph::kNumMetrics; ++i) {
    const double total = over_block(added[i], sum<double>);
    if (threadIdx.x == 0) metrics[i] += total;
  }
}

template <int kSize, typename T>
__global__ void __launch_bounds__(kThreads)
    loss_forward(Geometry g, const StepContext* context, const T* logits, const int32_t* labels, double* metrics,
                 float* saved, RowResult* results, unsigned* counter) {
  const int64_t row = blockIdx.x;
  const int32_t label = g.label(labels, row, *context);
  RowResult result{0, -1};
  float largest = 0, inverse_sum = 0;
  if (label >= 0) {
    const T* z = logits + row * g.pitch;
    // A label that is no class makes the loss NaN, which stops the run: nothing can be thrown from here.
    const bool is_class = label < g.classes;
    Scan scan{is_class ? to_float(z[label]) : NAN, g.smoothing != 0};
    scan.add_row<kSize>(z, g.classes, is_class ? label : 0);
    scan.combine_threads();
    largest = scan.largest;
    inverse_sum = 1 / scan.exponentials;
    // -sum_k q_k log p_k with log p_k = z_k - largest - log(exponentials).
    result.loss = scan.largest - scan.own + logf(scan.exponentials);
    if (scan.smooths) result.loss -= g.even() * scan.distances;
    result.before = isnan(scan.own) ? g.classes + 5 : scan.before;
  }
  if (threadIdx.x == 0) {
    results[row] = result;
    if (saved) {
      saved[row] = largest;
      saved[g.rows + row] = inverse_sum;
    }
  }
  if (is_last_block(counter) && !context->again) add_rows(g, results, metrics);
}

// The gradient may lie over the logits.
template <int kSize, typename T>
__global__ void __launch_bounds__(kThreads)
    loss_input_grad(Geometry g, const StepContext* context, const T* logits, const int32_t* labels, const float* saved,
                    const float* agreement, T* dlogits) {
  const int64_t row = blockIdx.x;
  const int32_t label = g.label(labels, row, *context);
  const int packs = static_cast<int>(g.pitch / kSize);  // with zeros behind the classes
  T* dz = dlogits + row * g.pitch;
  if (label < 0) {
    Pack<T, kSize> none;
#pragma unroll
    for (int k = 0; k < kSize; ++k) none.at[k] = from_float<T>(0);
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) store_pack(dz + i * kSize, none);
    return;
  }
  const float largest = saved[row], inverse_sum = saved[g.rows + row], even = g.even(), sure = 1 - g.smoothing;
  const float weight = static_cast<float>(context->inverse_samples / static_cast<double>(g.rows_per_sample)) *
                       (agreement ? agreement[graph::kScale] : 1);
  each_pack<kSize>(logits + row * g.pitch, packs, [&](Pack<T, kSize> pack, int first) {
    float difference[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) difference[k] = exponential(to_float(pack.at[k]) - largest) * inverse_sum - even;
    const int own = label - first;
    if (own >= 0 && own < kSize) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) difference[k] -= k == own ? sure : 0;
    }
    if (first + kSize > g.classes) {  // behind the row anything may stand
#pragma unroll
      for (int k = 0; k < kSize; ++k) difference[k] = first + k < g.classes ? difference[k] : 0;
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) pack.at[k] = from_float<T>(difference[k] * weight);
    store_pack(dz + first, pack);
  });
}

template <typename T>
Task forward_task(const Device& device, const Geometry& g, bool saves, const Bindings& at) {
  const T* logits = at.read<T>(0);
  const int32_t* labels = at.read<int32_t>(1);
  double* metrics = at.write<double>(0);
  float* saved = saves ? at.write<float>(1) : nullptr;
  auto* results = static_cast<RowResult*>(at.scratch);
  return with_pack<T>(g.pitch, [&]<int kSize>() -> Task {
    return [=](const StepContext&) {
      loss_forward<kSize><<<static_cast<unsigned>(g.rows), kThreads, 0, device.stream>>>(
          g, device.context, logits, labels, metrics, saved, results, device.counters);
      MILLRACE_LAUNCHED("loss_forward");
    };
  });
}

template <typename T>
Task input_grad_task(const Device& device, const Geometry& g, bool scaled, const Bindings& at) {
  const T* logits = at.read<T>(0);
  const int32_t* labels = at.read<int32_t>(1);
  const float *saved = at.read<float>(2), *agreement = scaled ? at.read<float>(3) : nullptr;
  T* dlogits = at.write<T>(0);
  return with_pack<T>(g.pitch, [&]<int kSize>() -> Task {
    return [=](const StepContext&) {
      loss_input_grad<kSize><<<static_cast<unsigned>(g.rows), kThreads, 0, device.stream>>>(
          g, device.context, logits, labels, saved, agreement, dlogits);
      MILLRACE_LAUNCHED("loss_input_grad");
    };
  });
}

}  // namespace

Kernel prepare_loss(const Device& device, const NodeView& view) {
  const Shape& logits = view.read(0);
  const Geometry g{.rows = logits.rows(),
                   .pitch = row_pitch(view.program, view.node.reads[0]),
                   .rows_per_sample = logits.rows() / logits[0],
                   .classes = static_cast<int>(logits.width()),
                   .smoothing = static_cast<float>(view.attrs<graph::LossAttrs>().label_smoothing)};
  Kernel kernel;
  kernel.algorithm = "rows";
  const DType dtype = dtype_of_read(view, 0);
  switch (view.node.pass) {
    case Pass::Forward:
    case Pass::Evaluate: {
      kernel.scratch_bytes = static_cast<size_t>(g.rows) * sizeof(RowResult);
      kernel.bind = [=, saves = view.num_writes() > 1](const Bindings& at) {
        return with_type(dtype, [&]<typename T>() { return forward_task<T>(device, g, saves, at); });
      };
      return kernel;
    }
    case Pass::InputGrad: {
      // So that it may lie over them. Whoever reads one of them as padded rows reads the other so.
      if (row_pitch(view.program, view.node.writes[0]) != g.pitch) {
        refuse_shape(view, "logits and their gradient lie differently");
      }
      kernel.bind = [=, scaled = view.num_reads() > 3](const Bindings& at) {
        return with_type(dtype, [&]<typename T>() { return input_grad_task<T>(device, g, scaled, at); });
      };
      return kernel;
    }
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::cuda
