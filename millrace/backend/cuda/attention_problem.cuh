// What our kernels of attention share: where heads lie, which keys a query sees, and the numbers of dropout.
//
// All of them take a few rows of one head (queries; in the gradient of keys and values, keys) and go through the other
// side in tiles. No score leaves its block, and nothing is added by two blocks: results have the same bits every time.
#pragma once

#include <cmath>
#include <string>

#include "millrace/backend/cuda/device.h"
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
  // For sums of what is kept: finite, since nothing is kept where it were not.
  __host__ __device__ float kept_scale() const { return on && !isinf(scale) ? scale : 1.0f; }
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

  // `last_first`: where later rows have more to do, they begin earlier.
  __device__ AttentionPlace(const AttentionProblem& p, int rows_of_block, bool last_first = false) {
    const int blocks = (p.length + rows_of_block - 1) / rows_of_block, head = static_cast<int>(blockIdx.x) / blocks;
    const int block = static_cast<int>(blockIdx.x) % blocks;
    n = head / p.heads;
    h = head % p.heads;
    first = (last_first ? blocks - 1 - block : block) * rows_of_block;
  }
};

inline unsigned attention_blocks(const AttentionProblem& p, int rows_of_block) {
  return static_cast<unsigned>(int64_t{p.rows} * p.heads * ((p.length + rows_of_block - 1) / rows_of_block));
}

// More than 48 KiB of shared memory have to be asked for.
template <typename Function>
void allow_shared(Function function, size_t bytes) {
  MILLRACE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(function),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace millrace::backend::cuda
