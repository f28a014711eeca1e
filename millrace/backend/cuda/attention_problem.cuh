// What the kernels of attention share: where heads lie, which keys a query sees, and what dropout keeps.
//
// All of them take a few rows of one head (queries; in the gradient of keys and values, keys) and go through the other
// side in tiles. No score leaves its block, and nothing is added by two blocks: results have the same bits every time.
#pragma once

#include <cmath>
#include <string>

#include "millrace/backend/cuda/device.h"
#include "millrace/backend/cuda/philox.cuh"
#include "millrace/base/random.h"

namespace millrace::backend::cuda {

// The mask of dropout_mask.h.
struct AttentionDropout {
  bool on;
  uint64_t purpose;
  uint32_t threshold;
  float scale;

  AttentionDropout(const std::string& name, double probability)
      : on(probability > 0),
        purpose(hash_name(name)),
        threshold(static_cast<uint32_t>(std::ceil(probability * 0x1p24))),
        scale(static_cast<float>(1.0 / (1.0 - probability))) {}

  // A selection, not a product: the scale of probability 1 is infinite.
  __device__ float factor(bool kept) const { return !on ? 1.0f : kept ? scale : 0.0f; }
};

struct AttentionProblem {
  int rows, length, heads, width;  // width: features of one head
  int planes;                      // of the tokens; the first counts
  bool causal;
  float scale;
  AttentionDropout dropout;
  const int32_t* tokens = nullptr;  // null: every key is there

  __host__ __device__ int features() const { return heads * width; }
  // From a token to the next, in qkv.
  __device__ int64_t qkv_stride() const { return 3 * int64_t{features()}; }
  __device__ int64_t query(int n, int h) const { return n * int64_t{length} * qkv_stride() + h * width; }
  __device__ int64_t key(int n, int h) const { return query(n, h) + features(); }
  __device__ int64_t value(int n, int h) const { return key(n, h) + features(); }
  __device__ int64_t output(int n, int h) const { return n * int64_t{length} * features() + h * width; }
  __device__ int64_t saved(int n, int h) const { return (int64_t{n} * heads + h) * length; }

  __device__ bool has_key(int n, int j) const {
    return j < length && !(tokens && tokens[int64_t{n} * planes * length + j] < 0);
  }
  __device__ bool hides(int i, int j) const { return causal && j > i; }
  // Behind the last key that queries up to `last_query` see.
  __device__ int end_of_keys(int last_query) const { return causal ? min(last_query + 1, length) : length; }
};

// A block's place: which rows of which head.
struct AttentionPlace {
  int n, h, first;

  __device__ AttentionPlace(const AttentionProblem& p, int rows_of_block) {
    const int blocks = (p.length + rows_of_block - 1) / rows_of_block, head = static_cast<int>(blockIdx.x) / blocks;
    n = head / p.heads;
    h = head % p.heads;
    first = static_cast<int>(blockIdx.x) % blocks * rows_of_block;
  }
};

inline unsigned attention_blocks(const AttentionProblem& p, int rows_of_block) {
  return static_cast<unsigned>(int64_t{p.rows} * p.heads * ((p.length + rows_of_block - 1) / rows_of_block));
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
struct AttentionGradient {
  const T *dy, *qkv, *y;
  const float* saved;
  float* along;
  T* dqkv;
};

}  // namespace millrace::backend::cuda
