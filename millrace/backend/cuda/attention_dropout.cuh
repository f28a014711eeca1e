// Which weights of attention dropout keeps, drawn once for all kernels that need them: Philox costs more than the
// products they are for. A bit a weight, in words of 32.
#pragma once

#include "millrace/backend/cuda/attention_problem.cuh"

namespace millrace::backend::cuda {

// `by_query`: for each query of each head a row of words over the keys; `by_key` the other way round. Either may be
// null. A row is whole tiles of 64.
struct KeptWeights {
  uint32_t *by_query = nullptr, *by_key = nullptr;

  __host__ __device__ static int words_of_row(const AttentionProblem& p) { return (p.length + 63) / 64 * 2; }
  // Of one of the two.
  static size_t bytes(const AttentionProblem& p) {
    return sizeof(uint32_t) * static_cast<size_t>(p.rows) * p.heads * p.length * words_of_row(p);
  }

  // For the step the device is at. What no query sees is left as it is.
  void draw(const Device& device, const AttentionProblem& p) const;
};

}  // namespace millrace::backend::cuda
