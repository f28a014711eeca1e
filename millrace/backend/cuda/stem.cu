#include "millrace/backend/cuda/stem.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

template <typename T>
__global__ void fold_pixels(Fold fold, const float* plain, T* to, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const int64_t from = fold.pixel_of(i);
    to[i] = from_float<T>(from < 0 ? 0.0f : plain[from]);
  }
}

template <typename T>
__global__ void fold_filters(Fold fold, const T* weight, T* folded, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const int64_t from = fold.place_of(i, padded(fold.channels));
    folded[i] = from < 0 ? from_float<T>(0) : weight[from];
  }
}

// What no folded element maps to was cleared before.
template <typename T, typename Out>
__global__ void unfold_filters(Fold fold, const T* folded, Out* weight, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const int64_t to = fold.place_of(i, padded(fold.channels));
    if (to >= 0) weight[to] = from_float<Out>(to_float(folded[i]));
  }
}

}  // namespace

void fold_images(const Device& device, const Fold& fold, const float* plain, int64_t rows, void* to, DType dtype) {
  const int64_t elements = fold.elements() / fold.n * rows;
  with_type(dtype, [&]<typename T>() {
    fold_pixels<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(fold, plain, static_cast<T*>(to), elements);
  });
  MILLRACE_LAUNCHED("fold_pixels");
}

void fold_weight(const Device& device, const Fold& fold, const void* weight, int64_t filters, void* folded,
                 DType dtype) {
  const int64_t elements = filters * fold.filter_elements();
  with_type(dtype, [&]<typename T>() {
    fold_filters<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(fold, static_cast<const T*>(weight),
                                                                             static_cast<T*>(folded), elements);
  });
  MILLRACE_LAUNCHED("fold_filters");
}

void unfold_weight(const Device& device, const Fold& fold, const void* folded, int64_t filters, void* weight,
                   DType folded_type, DType weight_type) {
  const int64_t elements = filters * fold.filter_elements();
  const int64_t stored = filters * fold.kernel * fold.kernel * padded(fold.channels);
  MILLRACE_CUDA(cudaMemsetAsync(weight, 0, static_cast<size_t>(stored) * bytes_of(weight_type), device.stream));
  with_type(folded_type, [&]<typename T>() {
    with_type(weight_type, [&]<typename Out>() {
      unfold_filters<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(fold, static_cast<const T*>(folded),
                                                                                 static_cast<Out*>(weight), elements);
    });
  });
  MILLRACE_LAUNCHED("unfold_filters");
}

}  // namespace millrace::backend::cuda
