#include <algorithm>
#include <cstring>

#include "millrace/backend/cuda/layout.h"
#include "millrace/backend/cuda/stem.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

template <typename T>
struct Element {
  __device__ static T from(float x) { return static_cast<T>(x); }
  __device__ static float to(T x) { return static_cast<float>(x); }
};
template <>
struct Element<__half> {
  __device__ static __half from(float x) { return from_float<__half>(x); }
  __device__ static float to(__half x) { return to_float(x); }
};
template <>
struct Element<__nv_bfloat16> {
  __device__ static __nv_bfloat16 from(float x) { return from_float<__nv_bfloat16>(x); }
  __device__ static float to(__nv_bfloat16 x) { return to_float(x); }
};

// How a row lies, of an image all but its first axis: channels and the area behind them; area 1 for what is plain.
struct RowShape {
  int64_t channels, stored_channels, area;
  __host__ __device__ int64_t plain() const { return channels * area; }
  __host__ __device__ int64_t stored() const { return stored_channels * area; }
};

template <typename T>
__global__ void store_rows(const float* plain, T* to, RowShape row, int64_t elements) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t n = i / row.stored(), rest = i % row.stored();
    const int64_t pixel = rest / row.stored_channels, c = rest % row.stored_channels;
    const float value = c < row.channels ? plain[n * row.plain() + c * row.area + pixel] : 0.0f;
    to[i] = Element<T>::from(value);
  }
}

template <typename T>
__global__ void load_rows(const T* from, float* plain, RowShape row, int64_t elements) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t n = i / row.plain(), rest = i % row.plain();
    const int64_t c = rest / row.area, pixel = rest % row.area;
    plain[i] = Element<T>::to(from[n * row.stored() + pixel * row.stored_channels + c]);
  }
}

template <typename Body>
void with_stored_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::F32: return body.template operator()<float>();
    case DType::F64: return body.template operator()<double>();
    case DType::I32: return body.template operator()<int32_t>();
    case DType::U8: return body.template operator()<uint8_t>();
    case DType::F16: return body.template operator()<__half>();
    case DType::BF16: return body.template operator()<__nv_bfloat16>();
  }
}

RowShape row_shape(const graph::Buffer& buffer, int64_t pitch) {
  const Shape& shape = buffer.shape;
  if (shape.rank() == 4) return {shape[1], padded(shape[1]), shape[2] * shape[3]};
  if (pitch != shape.width()) return {shape.width(), pitch, 1};
  return {1, 1, 1};  // a plain buffer has rows of one element
}

// Rows of a buffer, in pieces that fit the staging memory: visit(how they lie, the first of them, how many).
template <typename Visit>
void in_pieces(const Staging& staging, const graph::Buffer& buffer, int64_t pitch, const Visit& visit) {
  const RowShape row = row_shape(buffer, pitch);
  const int64_t rows = buffer.shape.elements() / row.plain();
  const int64_t most = static_cast<int64_t>(staging.bytes / sizeof(float)) / row.plain();
  if (most < 1) refuse_row(buffer, staging);
  for (int64_t first = 0; first < rows; first += most) visit(row, first, std::min(most, rows - first));
}

// Stored elements from `first` on.
void store(const Device& device, const float* plain, const RowShape& row, int64_t elements, DType dtype, void* to,
           int64_t first) {
  with_stored_type(dtype, [&]<typename T>() {
    store_rows<T>
        <<<grid_for(device, elements, 256), 256, 0, device.stream>>>(plain, static_cast<T*>(to) + first, row, elements);
  });
  MILLRACE_LAUNCHED("store_rows");
}

}  // namespace

void store_plain(const Device& device, const graph::Buffer& buffer, int64_t pitch, int64_t stored, const float* plain,
                 void* to) {
  const RowShape row = row_shape(buffer, pitch);
  const int64_t elements = buffer.shape.elements() / row.plain() * row.stored();
  if (elements < stored) {
    MILLRACE_CUDA(cudaMemsetAsync(to, 0, static_cast<size_t>(stored) * bytes_of(buffer.dtype), device.stream));
  }
  store(device, plain, row, elements, buffer.dtype, to, 0);
}

void put_plain(const Device& device, const Staging& staging, const graph::Buffer& buffer, int64_t pitch, int64_t stored,
               const float* plain, void* to) {
  MILLRACE_CUDA(cudaMemsetAsync(to, 0, static_cast<size_t>(stored) * bytes_of(buffer.dtype), device.stream));
  in_pieces(staging, buffer, pitch, [&](const RowShape& row, int64_t first, int64_t rows) {
    MILLRACE_CUDA(cudaMemcpyAsync(staging.memory, plain + first * row.plain(),
                                  static_cast<size_t>(rows * row.plain()) * sizeof(float), cudaMemcpyHostToDevice,
                                  device.stream));
    store(device, staging.memory, row, rows * row.stored(), buffer.dtype, to, first * row.stored());
  });
  MILLRACE_CUDA(cudaStreamSynchronize(device.stream));
}

void put_images(const Device& device, const Staging& staging, const graph::Buffer& buffer, const Fold& fold,
                const float* plain, void* to) {
  in_pieces(staging, buffer, buffer.shape.width(), [&](const RowShape& row, int64_t first, int64_t rows) {
    MILLRACE_CUDA(cudaMemcpyAsync(staging.memory, plain + first * row.plain(),
                                  static_cast<size_t>(rows * row.plain()) * sizeof(float), cudaMemcpyHostToDevice,
                                  device.stream));
    const auto offset = static_cast<size_t>(fold.elements() / fold.n * first) * bytes_of(buffer.dtype);
    fold_images(device, fold, staging.memory, rows, static_cast<std::byte*>(to) + offset, buffer.dtype);
  });
  MILLRACE_CUDA(cudaStreamSynchronize(device.stream));
}

void get_plain(const Device& device, const Staging& staging, const graph::Buffer& buffer, int64_t pitch,
               const void* from, float* plain) {
  const Landing* landing = staging.landing;
  struct {
    float* to = nullptr;
    size_t bytes = 0;
    size_t place = 0;  // in the landing
  } landed;
  const auto empty = [&] {
    if (!landed.to) return;
    MILLRACE_CUDA(cudaEventSynchronize(landing->filled[landed.place]));
    std::memcpy(landed.to, landing->memory[landed.place], landed.bytes);
  };
  in_pieces(staging, buffer, pitch, [&](const RowShape& row, int64_t first, int64_t rows) {
    const int64_t elements = rows * row.plain();
    const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
    float* to = plain + first * row.plain();
    with_stored_type(buffer.dtype, [&]<typename T>() {
      load_rows<T><<<grid_for(device, elements, 256), 256, 0, device.stream>>>(
          static_cast<const T*>(from) + first * row.stored(), staging.memory, row, elements);
    });
    MILLRACE_LAUNCHED("load_rows");
    if (!landing) {
      MILLRACE_CUDA(cudaMemcpyAsync(to, staging.memory, bytes, cudaMemcpyDeviceToHost, device.stream));
      MILLRACE_CUDA(cudaStreamSynchronize(device.stream));
      return;
    }
    const size_t place = 1 - landed.place;
    MILLRACE_CUDA(
        cudaMemcpyAsync(landing->memory[place], staging.memory, bytes, cudaMemcpyDeviceToHost, device.stream));
    MILLRACE_CUDA(cudaEventRecord(landing->filled[place], device.stream));
    empty();
    landed = {to, bytes, place};
  });
  empty();
}

}  // namespace millrace::backend::cuda
