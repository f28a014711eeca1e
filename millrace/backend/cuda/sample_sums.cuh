// The gradient of numbers that every sample has added or begins with: a sum over samples, always in the same order.
#pragma once

#include "millrace/backend/cuda/pack.cuh"

namespace millrace::backend::cuda {

// dw[e] = sum over samples n of dy[n stride + e] for e < summed, zero for the others.
struct SampleSums {
  int64_t samples, stride, summed, elements;

  static constexpr int kLanes = 32, kParts = 8;  // a block: packs of elements, and parts of the samples
};

template <int kSize, typename T, typename U>
__global__ void sample_sums(SampleSums s, const T* dy, U* dw) {
  constexpr int kParts = SampleSums::kParts;
  __shared__ float parts[kParts][SampleSums::kLanes][kSize + 1];
  const int64_t first = (int64_t{blockIdx.x} * SampleSums::kLanes + threadIdx.x) * kSize;
  float sum[kSize] = {};
  if (first < s.summed) {
#pragma unroll 4
    for (int64_t n = threadIdx.y; n < s.samples; n += kParts) {
      const Pack<T, kSize> pack = load_pack<kSize>(dy + n * s.stride + first);
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum[k] += to_float(pack.at[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) parts[threadIdx.y][threadIdx.x][k] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0 || first >= s.elements) return;
  for (int part = 1; part < kParts; ++part) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum[k] += parts[part][threadIdx.x][k];
  }
  store_gradient<T>(dw + first, sum);
}

// Rows of `width` elements: all numbers of SampleSums are multiples of it.
inline Task sample_sums_task(const Device& device, const SampleSums& sums, int64_t width, DType dtype, DType out_dtype,
                             const Bindings& at) {
  return with_type(dtype, [&]<typename T>() -> Task {
    return with_type(out_dtype, [&]<typename U>() -> Task {
      return with_pack<T>(width, [&]<int kSize>() -> Task {
        const T* dy = at.read<T>(0);
        U* dw = at.write<U>(0);
        constexpr int64_t kBlock = int64_t{SampleSums::kLanes} * kSize;
        const auto blocks = static_cast<unsigned>((sums.elements + kBlock - 1) / kBlock);
        const dim3 threads(SampleSums::kLanes, SampleSums::kParts);
        return [=](const StepContext&) {
          sample_sums<kSize><<<blocks, threads, 0, device.stream>>>(sums, dy, dw);
          MILLRACE_LAUNCHED("sample_sums");
        };
      });
    });
  });
}

}  // namespace millrace::backend::cuda
