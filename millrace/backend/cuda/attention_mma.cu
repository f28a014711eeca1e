// Forward: a warp has rows of queries and goes through the keys in tiles; the next tile is on its way while one is
// worked on.
#include "millrace/backend/cuda/attention_fragments.cuh"
#include "millrace/backend/cuda/attention_mma.cuh"

namespace millrace::backend::cuda::mma_attention {
namespace {

template <typename T, int kWidth>
struct ForwardShared {
  Tile<T, kWidth> queries, keys[2], values[2];
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth <= 64 ? 4 : 2)
    forward(AttentionProblem p, const T* qkv, const uint32_t* kept, T* y, float* saved) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T, kWidth>*>(memory);
  const AttentionPlace at(p, kRows, p.causal);
  const int first = at.first + row_of_warp();  // query of the warp
  const float scale = p.scale * kLog2E;        // powers of two from here on
  auto load = [&](int first_key) {
    const int buffer = first_key / kTile % 2;
    shared.keys[buffer].load(p, qkv + p.key(at.n, at.h), p.qkv_stride(), first_key);
    shared.values[buffer].load(p, qkv + p.value(at.n, at.h), p.qkv_stride(), first_key);
  };
  shared.queries.load(p, qkv + p.query(at.n, at.h), p.qkv_stride(), at.first);
  load(0);
  arrived();
  __syncthreads();
  Operand<kWidth> queries;
  load_operand(shared.queries, queries);

  Accumulator<kWidth> sums = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};  // of all scores; of this lane's exponentials
  const int end = p.end_of_keys(at.first + kRows - 1);
  for (int first_key = 0; first_key < end; first_key += kTile) {
    if (first_key > 0) {
      arrived();
      __syncthreads();  // all have this tile, and are done with the one before
    }
    if (first_key + kTile < end) load(first_key + kTile);
    const Bits there = keys_there(p, at.n, first_key);
    if (first >= p.length || there.none()) continue;

    const int buffer = first_key / kTile % 2, groups = min(kTile / 16, (end - first_key + 15) / 16);
    Accumulator<kTile> weights;
    multiply_turned<T, kWidth, kTile>(queries, shared.keys[buffer], 0, groups, weights);
    if (!there.full() || p.hides(first, first_key + kTile - 1)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = first + row_of(2 * half);
        const Bits seen = (p.causal ? there & Bits::up_to(i - first_key) : there).of_lane();
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) weights[n][e] = seen.at(n, e) ? weights[n][e] : -INFINITY;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) most = fmaxf(most, fmaxf(weights[n][2 * half], weights[n][2 * half + 1]));
      most = largest_of_row(most);
      const float base = most == -INFINITY ? 0 : most * scale;  // no key so far: all exponentials are zero
      const float shrink = power_of_two(largest[half] * scale - base);
      largest[half] = most;
      total[half] *= shrink;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        sums[n][2 * half] *= shrink;
        sums[n][2 * half + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          weights[n][e] = power_of_two(weights[n][e] * scale - base);
          total[half] += weights[n][e];
        }
      }
      if (kept) {
        const Bits of_row = kept_of_row(p, at, kept, first + row_of(2 * half), first_key);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) weights[n][e] = of_row.at(n, e) ? weights[n][e] : 0;
        }
      }
    }
    Operand<kTile> operand;
    to_operand<T, kTile>(weights, operand);
    multiply<T, kWidth, kTile>(operand, shared.values[buffer], 0, groups, sums);
  }

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first + row_of(2 * half);
    const bool sees_none = largest[half] == -INFINITY;
    const float sum = sum_of_row(total[half]);
    inverse[half] = sees_none ? 0 : p.dropout.kept_scale() / sum;
    if (saved && lane() % 4 == 0 && i < p.length) {
      saved[p.saved(at.n, at.h) + i] = sees_none ? 0 : largest[half] * p.scale + logf(sum);
    }
  }
  store_rows<T, kWidth>(p, first, sums, y + p.output(at.n, at.h), p.features(),
                        [&](int half) { return inverse[half]; });
}

}  // namespace

bool takes(DType dtype, int width) { return is_half(dtype) && width % 8 == 0 && width <= kMostWidth; }

size_t forward_scratch(const AttentionProblem& p) { return p.dropout.on ? KeptWeights::bytes(p) : 0; }

template <typename T>
Task forward_task(const Device& device, const AttentionProblem& p, const T* qkv, T* y, float* saved, void* scratch) {
  return with_width(p.width, [&]<int kWidth>() -> Task {
    constexpr size_t kBytes = sizeof(ForwardShared<T, kWidth>);
    allow_shared(forward<T, kWidth>, kBytes);
    const unsigned blocks = attention_blocks(p, kRows);
    const KeptWeights kept{p.dropout.on ? static_cast<uint32_t*>(scratch) : nullptr, nullptr};
    return [=](const StepContext&) {
      if (p.dropout.on) kept.draw(device, p);
      forward<T, kWidth><<<blocks, kThreads, kBytes, device.stream>>>(p, qkv, kept.by_query, y, saved);
      MILLRACE_LAUNCHED("attention forward");
    };
  });
}
template Task forward_task(const Device&, const AttentionProblem&, const __half*, __half*, float*, void*);
template Task forward_task(const Device&, const AttentionProblem&, const __nv_bfloat16*, __nv_bfloat16*, float*, void*);

}  // namespace millrace::backend::cuda::mma_attention
