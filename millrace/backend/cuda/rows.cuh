// Rows that are copied from somewhere: what embeddings and changes between images and tokens have in common.
#pragma once

#include <algorithm>

#include "millrace/backend/cuda/pack.cuh"

namespace millrace::backend::cuda {

// Where a row comes from; nowhere: all of it is `fill`.
template <typename T>
struct RowSource {
  const T* row = nullptr;
  float fill = 0;
};

// `rows` rows of `stored` elements are written; a source has the first `width` of them, zeros follow.
struct RowCopy {
  int64_t rows, width, stored;
};

// Threads: x along a row, y over rows.
template <int kSize, typename T, typename SourceOf>
__global__ void copy_rows(RowCopy copy, SourceOf source_of, T* to) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= copy.rows) return;
  const RowSource<T> source = source_of(row);
  for (int64_t first = int64_t{threadIdx.x} * kSize; first < copy.stored; first += int64_t{blockDim.x} * kSize) {
    Pack<T, kSize> pack;
    if (source.row && first < copy.width) {
      pack = load_pack<kSize>(source.row + first);
    } else {
      const T fill = from_float<T>(first < copy.width ? source.fill : 0);
#pragma unroll
      for (int k = 0; k < kSize; ++k) pack.at[k] = fill;
    }
    store_pack(to + row * copy.stored + first, pack);
  }
}

// source_of(row) is called on the device.
template <typename T, typename SourceOf>
Task copy_rows_task(const Device& device, const RowCopy& copy, const SourceOf& source_of, T* to) {
  return with_pack<T>(copy.width, [&]<int kSize>() -> Task {
    constexpr int64_t kThreads = 256, kWarp = 32;
    const int64_t packs = (copy.stored + kSize - 1) / kSize;
    const int64_t along = std::min(kThreads, (packs + kWarp - 1) / kWarp * kWarp), over = kThreads / along;
    const dim3 threads(static_cast<unsigned>(along), static_cast<unsigned>(over));
    const auto blocks = static_cast<unsigned>((copy.rows + over - 1) / over);
    return [=](const StepContext&) {
      copy_rows<kSize><<<blocks, threads, 0, device.stream>>>(copy, source_of, to);
      MILLRACE_LAUNCHED("copy_rows");
    };
  });
}

}  // namespace millrace::backend::cuda
