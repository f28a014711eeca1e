// Attention in floats, for every width and type: a warp has a few rows, and a lane one row of the tile of the other
// side; when weights are multiplied with that tile, a lane has some of its features.
#pragma once

#include "millrace/backend/cuda/attention_problem.cuh"
#include "millrace/backend/cuda/philox.cuh"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda::plain_attention {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kOwn = 4;  // rows of a warp
constexpr int kRows = kWarps * kOwn;
constexpr int kMostWidth = 256;

// In shared memory: two kinds of the block's own rows and two tiles.
struct Workspace {
  int width, stride;  // stride: odd, so that the rows of a tile begin in different banks
  float *own[2], *tile[2];

  __device__ Workspace(const AttentionProblem& p, float* shared) : width(p.width), stride(p.width | 1) {
    own[0] = shared;
    own[1] = own[0] + kRows * width;
    tile[0] = own[1] + kRows * width;
    tile[1] = tile[0] + kWarp * stride;
  }
  static size_t bytes(const AttentionProblem& p) {
    return sizeof(float) * static_cast<size_t>(2 * kRows * p.width + 2 * kWarp * (p.width | 1));
  }

  // Of the warp's row r and the lane's row of a tile.
  __device__ void dots(int which, float (&result)[kOwn]) const {
    const float* of_lane = tile[which] + threadIdx.x % kWarp * stride;
    const float* of_warp = own[which] + threadIdx.x / kWarp * kOwn * width;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) result[r] = 0;
    for (int d = 0; d < width; ++d) {
      const float x = of_lane[d];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) result[r] += of_warp[r * width + d] * x;
    }
  }

  // sums(row, feature) += weights(row, row of the tile) * tile. The lane has features lane, lane + 32, ...
  template <int kChunks>
  __device__ void add_weighted(int which, const float (&weights)[kOwn], float (&sums)[kOwn][kChunks]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int j = 0; j < kWarp; ++j) {
      float weight[kOwn];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) weight[r] = __shfl_sync(~0u, weights[r], j);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int d = lane + c * kWarp;
        const float x = d < width ? tile[which][j * stride + d] : 0;
#pragma unroll
        for (int r = 0; r < kOwn; ++r) sums[r][c] += weight[r] * x;
      }
    }
  }
};

// Rows [first, first + rows); behind the last there are zeros.
template <typename T>
__device__ inline void load_rows(const AttentionProblem& p, const T* from, int64_t from_stride, int first, int rows,
                                 float* to, int to_stride) {
  for (int at = static_cast<int>(threadIdx.x); at < rows * p.width; at += kThreads) {
    const int row = at / p.width, d = at % p.width;
    const bool exists = first + row < p.length;
    to[row * to_stride + d] = exists ? to_float(from[(first + row) * from_stride + d]) : 0.0f;
  }
}

// Of the warp's rows, `factor(r)` times the sums.
template <typename T, int kChunks, typename Factor>
__device__ inline void store_rows(const AttentionProblem& p, int first, const float (&sums)[kOwn][kChunks], T* to,
                                  int64_t to_stride, Factor factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    if (first + r >= p.length) continue;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int d = lane + c * kWarp;
      if (d < p.width) to[(first + r) * to_stride + d] = from_float<T>(sums[r][c] * factor(r));
    }
  }
}

// Which weights of queries [first_query, + kQueries) and keys [first_key, + kKeys) dropout keeps. A thread draws whole
// Philox blocks of four; a row of weights may begin in the middle of one.
template <int kQueries, int kKeys, int kStride>
__device__ inline void draw_kept(const AttentionProblem& p, const StepContext& context, int n, int h, int first_query,
                                 int first_key, uint8_t (&kept)[kQueries][kStride]) {
  static_assert(kStride >= kKeys);
  constexpr int kBlocks = kKeys / 4 + 1;
  const uint64_t key = mix(mix(context.seed, p.dropout.purpose), static_cast<uint64_t>(context.step));
  const uint64_t sample = static_cast<uint64_t>(context.first_row + n);
  for (int at = static_cast<int>(threadIdx.x); at < kQueries * kBlocks; at += static_cast<int>(blockDim.x)) {
    const int row = at / kBlocks, block = at % kBlocks;
    if (first_query + row >= p.length) continue;
    const uint64_t first = (static_cast<uint64_t>(h) * p.length + first_query + row) * p.length + first_key;
    const int column = 4 * block - static_cast<int>(first % 4);
    if (column >= kKeys) continue;
    const PhiloxBlock words = philox(key, sample, first / 4 + block);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (column + e >= 0 && column + e < kKeys) kept[row][column + e] = (words.at[e] >> 8) >= p.dropout.threshold;
    }
  }
}

// Operands of the gradient. `along`, for each query: the sum of dy y, which is that of all weights times their
// gradients, so that the softmax's gradient needs no sum over keys.
template <typename T>
struct Gradient {
  const T *dy, *qkv, *y;
  const float* saved;
  float* along;
  T* dqkv;
};

__device__ inline float largest_of_warp(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ inline float sum_of_warp(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads)
    forward(AttentionProblem p, const StepContext* context, const T* qkv, T* y, float* saved) {
  extern __shared__ float shared[];
  __shared__ uint8_t kept[kRows][kWarp];
  const Workspace work(p, shared);
  const AttentionPlace at(p, kRows);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp * kOwn;
  const int first = at.first + own;  // query of the warp
  load_rows(p, qkv + p.query(at.n, at.h), p.qkv_stride(), at.first, kRows, work.own[0], p.width);

  float sums[kOwn][kChunks] = {}, largest[kOwn], total[kOwn] = {};
#pragma unroll
  for (int r = 0; r < kOwn; ++r) largest[r] = -INFINITY;
  const int end = p.end_of_keys(at.first + kRows - 1);
  for (int first_key = 0; first_key < end; first_key += kWarp) {
    __syncthreads();  // the last tile was read
    load_rows(p, qkv + p.key(at.n, at.h), p.qkv_stride(), first_key, kWarp, work.tile[0], work.stride);
    load_rows(p, qkv + p.value(at.n, at.h), p.qkv_stride(), first_key, kWarp, work.tile[1], work.stride);
    if (p.dropout.on) draw_kept<kRows, kWarp>(p, *context, at.n, at.h, at.first, first_key, kept);
    __syncthreads();
    const int j = first_key + lane;
    const bool has_key = p.has_key(at.n, j);
    float weights[kOwn];
    work.dots(0, weights);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const float score = has_key && !p.hides(first + r, j) ? weights[r] * p.scale : -INFINITY;
      const float most = fmaxf(largest[r], largest_of_warp(score));
      const float base = most == -INFINITY ? 0 : most;  // no key so far: all exponentials are zero
      const float shrink = expf(largest[r] - base), weight = expf(score - base);
      largest[r] = most;
      total[r] = total[r] * shrink + sum_of_warp(weight);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) sums[r][c] *= shrink;
      weights[r] = weight * p.dropout.factor(p.dropout.on && kept[own + r][lane]);
    }
    work.add_weighted(1, weights, sums);
  }
  // Where no key is seen the sums are zero.
  store_rows(p, first, sums, y + p.output(at.n, at.h), p.features(),
             [&](int r) { return largest[r] == -INFINITY ? 0 : 1 / total[r]; });
  if (saved && lane == 0) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const float log_sum = largest[r] == -INFINITY ? 0 : largest[r] + logf(total[r]);
      if (first + r < p.length) saved[p.saved(at.n, at.h) + first + r] = log_sum;
    }
  }
}

// Of the queries; leaves `along` for the other kernel.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads) query_grad(AttentionProblem p, const StepContext* context, Gradient<T> to) {
  extern __shared__ float shared[];
  __shared__ uint8_t kept[kRows][kWarp];
  const Workspace work(p, shared);
  const AttentionPlace at(p, kRows);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp * kOwn;
  const int first = at.first + own;
  load_rows(p, to.qkv + p.query(at.n, at.h), p.qkv_stride(), at.first, kRows, work.own[0], p.width);
  load_rows(p, to.dy + p.output(at.n, at.h), p.features(), at.first, kRows, work.own[1], p.width);
  __syncthreads();
  float along[kOwn], saved[kOwn], sums[kOwn][kChunks] = {};
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const bool exists = first + r < p.length;
    const T* y = to.y + p.output(at.n, at.h) + int64_t{first + r} * p.features();
    float sum = 0;
    for (int d = lane; exists && d < p.width; d += kWarp) sum += work.own[1][(own + r) * p.width + d] * to_float(y[d]);
    along[r] = sum_of_warp(sum);
    saved[r] = exists ? to.saved[p.saved(at.n, at.h) + first + r] : 0;
    if (exists && lane == 0) to.along[p.saved(at.n, at.h) + first + r] = along[r];
  }
  const int end = p.end_of_keys(at.first + kRows - 1);
  for (int first_key = 0; first_key < end; first_key += kWarp) {
    __syncthreads();
    load_rows(p, to.qkv + p.key(at.n, at.h), p.qkv_stride(), first_key, kWarp, work.tile[0], work.stride);
    load_rows(p, to.qkv + p.value(at.n, at.h), p.qkv_stride(), first_key, kWarp, work.tile[1], work.stride);
    if (p.dropout.on) draw_kept<kRows, kWarp>(p, *context, at.n, at.h, at.first, first_key, kept);
    __syncthreads();
    const int j = first_key + lane;
    const bool has_key = p.has_key(at.n, j);
    float scores[kOwn], dweights[kOwn], dscores[kOwn];
    work.dots(0, scores);
    work.dots(1, dweights);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const bool seen = has_key && !p.hides(first + r, j);
      const float weight = seen ? expf(scores[r] * p.scale - saved[r]) : 0;
      const float factor = p.dropout.factor(p.dropout.on && kept[own + r][lane]);
      dscores[r] = weight * (factor * dweights[r] - along[r]);
    }
    work.add_weighted(0, dscores, sums);
  }
  store_rows(p, first, sums, to.dqkv + p.query(at.n, at.h), p.qkv_stride(), [&](int) { return p.scale; });
}

// Of the keys and values: the block's rows are keys, the tiles queries.
template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads)
    key_value_grad(AttentionProblem p, const StepContext* context, Gradient<T> to) {
  extern __shared__ float shared[];
  __shared__ uint8_t kept[kWarp][kRows];
  const Workspace work(p, shared);
  const AttentionPlace at(p, kRows);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, own = static_cast<int>(threadIdx.x) / kWarp * kOwn;
  const int first = at.first + own;
  load_rows(p, to.qkv + p.key(at.n, at.h), p.qkv_stride(), at.first, kRows, work.own[0], p.width);
  load_rows(p, to.qkv + p.value(at.n, at.h), p.qkv_stride(), at.first, kRows, work.own[1], p.width);
  bool has_key[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) has_key[r] = p.has_key(at.n, first + r);
  float dkeys[kOwn][kChunks] = {}, dvalues[kOwn][kChunks] = {};
  // Queries before the first key do not see any of them.
  for (int first_query = p.causal ? at.first : 0; first_query < p.length; first_query += kWarp) {
    __syncthreads();
    load_rows(p, to.qkv + p.query(at.n, at.h), p.qkv_stride(), first_query, kWarp, work.tile[0], work.stride);
    load_rows(p, to.dy + p.output(at.n, at.h), p.features(), first_query, kWarp, work.tile[1], work.stride);
    if (p.dropout.on) draw_kept<kWarp, kRows>(p, *context, at.n, at.h, first_query, at.first, kept);
    __syncthreads();
    const int i = first_query + lane;
    const bool exists = i < p.length;
    const float saved = exists ? to.saved[p.saved(at.n, at.h) + i] : 0;
    const float along = exists ? to.along[p.saved(at.n, at.h) + i] : 0;
    float weights[kOwn], dscores[kOwn];
    work.dots(0, weights);
    work.dots(1, dscores);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const bool seen = exists && has_key[r] && !p.hides(i, first + r);
      const float weight = seen ? expf(weights[r] * p.scale - saved) : 0;
      const float factor = p.dropout.factor(p.dropout.on && kept[lane][own + r]);
      weights[r] = weight * factor;
      dscores[r] = weight * (factor * dscores[r] - along);
    }
    work.add_weighted(0, dscores, dkeys);
    work.add_weighted(1, weights, dvalues);
  }
  store_rows(p, first, dkeys, to.dqkv + p.key(at.n, at.h), p.qkv_stride(), [&](int) { return p.scale; });
  store_rows(p, first, dvalues, to.dqkv + p.value(at.n, at.h), p.qkv_stride(), [](int) { return 1.0f; });
}

}  // namespace millrace::backend::cuda::plain_attention
