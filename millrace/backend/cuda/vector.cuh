// Sixteen bytes of elements, and their conversion to the floats that all arithmetic is done in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <utility>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <typename T>
struct Floats {
  float at[Vector<T>::kSize];
};

// As it lies: several loads may be under way before the first is used, in few registers.
template <typename T>
__device__ inline Vector<T> load_raw(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}

template <typename T>
__device__ inline Floats<T> floats_of(const Vector<T>& vector) {
  Floats<T> floats;
#pragma unroll
  for (int i = 0; i < Vector<T>::kSize; ++i) floats.at[i] = to_float(vector.at[i]);
  return floats;
}

template <typename T>
__device__ inline Floats<T> load(const T* from) {
  return floats_of(load_raw(from));
}

template <typename T>
__device__ inline void store(T* to, const Floats<T>& floats) {
  Vector<T> vector;
#pragma unroll
  for (int i = 0; i < Vector<T>::kSize; ++i) vector.at[i] = from_float<T>(floats.at[i]);
  *reinterpret_cast<Vector<T>*>(to) = vector;
}

// Keeps NaN, so that a run that has diverged shows it.
__device__ inline float relu(float x) { return x < 0 ? 0 : x; }

// body.operator()<T>() for the element type of a float buffer.
template <typename Body>
auto with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::F16: return body.template operator()<__half>();
    case DType::BF16: return body.template operator()<__nv_bfloat16>();
    default: return body.template operator()<float>();
  }
}

// Blocks of `threads` for `work` items, a few waves of them at most: kernels stride over the rest.
inline int grid_for(const Device& device, int64_t work, int threads, int blocks_per_multiprocessor = 8) {
  const int64_t wanted = (work + threads - 1) / threads;
  const int64_t most = int64_t{device.multiprocessors} * blocks_per_multiprocessor;
  return static_cast<int>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace millrace::backend::cuda
