// Some neighbouring elements, read and written together: as many as a vector has where rows are whole vectors, one
// where they are not; and as they are stored in another type than they are computed from.
#pragma once

#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {

template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Pack {
  T at[kSize];
};

template <int kSize, typename T>
__device__ inline Pack<T, kSize> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kSize>*>(from);
}

template <int kSize, typename T>
__device__ inline void store_pack(T* to, const Pack<T, kSize>& pack) {
  *reinterpret_cast<Pack<T, kSize>*>(to) = pack;
}

// A gradient whose values are of type T: rounded as one worker has it, also where it is kept in more digits for a sum
// over replicas.
template <typename T, typename U, int kSize>
__device__ inline void store_gradient(U* to, const float (&sums)[kSize]) {
  Pack<U, kSize> pack;
#pragma unroll
  for (int k = 0; k < kSize; ++k) pack.at[k] = from_float<U>(to_float(from_float<T>(sums[k])));
  store_pack(to, pack);
}

// body.operator()<kSize>() for rows of `width` elements of type T.
template <typename T, typename Body>
auto with_pack(int64_t width, Body&& body) {
  if (width % 8 == 0) return body.template operator()<Vector<T>::kSize>();
  return body.template operator()<1>();
}

}  // namespace millrace::backend::cuda
