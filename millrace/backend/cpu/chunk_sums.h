// Long sums that come out the same however many threads make them: each chunk is summed by one thread, then the chunks
// in order.
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace::backend::cpu {

constexpr int64_t kSumChunk = 16384;

constexpr int64_t num_chunks(int64_t floats) { return (floats + kSumChunk - 1) / kSumChunk; }

// sum_of(begin, end) over all chunks, in parallel; `sums` has a place for each chunk. Sum: what has +=.
template <typename Sum, typename SumOf>
Sum sum_chunks(int64_t floats, Sum* sums, const SumOf& sum_of) {
  const int64_t chunks = num_chunks(floats);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    sums[chunk] = sum_of(chunk * kSumChunk, std::min(floats, (chunk + 1) * kSumChunk));
  }
  Sum total{};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk];
  return total;
}

}  // namespace millrace::backend::cpu
