// Two sums per channel over all pixels of an image, in one launch and always in the same order.
#pragma once

#include <algorithm>

#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {

// The grid of the kernels that sum: blocks.x row blocks times blocks.y channel groups; a block is `lanes` vectors wide
// and kThreads / lanes rows high.
struct SumGrid {
  static constexpr int kThreads = 512;
  int lanes = 1;
  dim3 blocks;

  template <typename T>
  static SumGrid of(const Device& device, int64_t pixels, int64_t channels) {
    const int64_t vectors = channels / Vector<T>::kSize;
    SumGrid grid;
    // 128 bytes of a row are enough for memory; more channels in a group would leave more to add to its last block.
    while (grid.lanes < 8 && grid.lanes < vectors) grid.lanes *= 2;
    const int64_t groups = (vectors + grid.lanes - 1) / grid.lanes;
    const int64_t rows = kThreads / grid.lanes;
    // As many blocks as run at once, each with some rows of work.
    const int64_t wanted = std::max<int64_t>(1, int64_t{device.multiprocessors} * 2 / groups);
    const int64_t useful = std::max<int64_t>(1, pixels / (rows * 8));
    grid.blocks = dim3(static_cast<unsigned>(std::min({wanted, useful, int64_t{1024}})), static_cast<unsigned>(groups));
    return grid;
  }
  size_t scratch_bytes(int64_t channels) const { return size_t{blocks.x} * 2 * static_cast<size_t>(channels) * 4; }
};

// Adds two sums per channel over the threads of a block, then over the blocks: the last block of a channel group to
// finish adds what all have found, in their order, so that the result does not depend on who was last, and calls
// finish(channel, total, total) for each channel.
template <typename T>
struct Totals {
  static constexpr int kSize = Vector<T>::kSize;
  static constexpr int kThreads = SumGrid::kThreads;

  // `partial`: [block][2][channels].
  template <typename Finish>
  __device__ static void add(const float (&a)[kSize], const float (&b)[kSize], int lanes, int64_t channels,
                             float* partial, unsigned* counters, Finish&& finish) {
    __shared__ float shared[2][kThreads][kSize + 1];
    const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      shared[0][threadIdx.x][k] = a[k];
      shared[1][threadIdx.x][k] = b[k];
    }
    for (int half = rows / 2; half > 0; half /= 2) {
      __syncthreads();
      if (row < half) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          shared[0][threadIdx.x][k] += shared[0][threadIdx.x + half * lanes][k];
          shared[1][threadIdx.x][k] += shared[1][threadIdx.x + half * lanes][k];
        }
      }
    }
    __syncthreads();
    const int64_t first = (int64_t{blockIdx.y} * lanes + lane) * kSize;
    if (row == 0 && first < channels) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        partial[(int64_t{blockIdx.x} * 2 + 0) * channels + first + k] = shared[0][lane][k];
        partial[(int64_t{blockIdx.x} * 2 + 1) * channels + first + k] = shared[1][lane][k];
      }
    }
    __threadfence();
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counters + blockIdx.y, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x == 0) counters[blockIdx.y] = 0;
    __threadfence();
    // Several threads per channel, each with every so many blocks; a group has at most half as many channels as there
    // are threads.
    const int group = lanes * kSize, parts = kThreads / group;
    const int part = static_cast<int>(threadIdx.x) / group;
    const int64_t c = int64_t{blockIdx.y} * group + threadIdx.x % group;
    double total_a = 0, total_b = 0;
    if (part < parts && c < channels) {
#pragma unroll 8
      for (unsigned block = part; block < gridDim.x; block += parts) {
        total_a += __ldcg(partial + (int64_t{block} * 2 + 0) * channels + c);
        total_b += __ldcg(partial + (int64_t{block} * 2 + 1) * channels + c);
      }
    }
    __shared__ double totals[2][kThreads];
    totals[0][threadIdx.x] = total_a;
    totals[1][threadIdx.x] = total_b;
    __syncthreads();
    if (part != 0 || c >= channels) return;
    for (int other = 1; other < parts; ++other) {
      total_a += totals[0][threadIdx.x + other * group];
      total_b += totals[1][threadIdx.x + other * group];
    }
    finish(c, total_a, total_b);
  }
};

}  // namespace millrace::backend::cuda
