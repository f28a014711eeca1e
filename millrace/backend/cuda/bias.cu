#include "millrace/backend/cuda/bias.h"
#include "millrace/backend/cuda/channel_sums.cuh"

namespace millrace::backend::cuda {
namespace {

template <typename T, bool kRelu>
__global__ void add_bias_rows(T* y, const T* bias, int64_t vectors, int64_t elements) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    Floats<T> value = load(y + i * kSize);
    Floats<T> add{};
    if (bias) add = load(bias + i % vectors * kSize);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float sum = value.at[k] + add.at[k];
      value.at[k] = kRelu ? relu(sum) : sum;
    }
    store(y + i * kSize, value);
  }
}

template <typename T, bool kRelu>
__global__ void add_bias_elements(T* y, const T* bias, int64_t channels, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const float sum = to_float(y[i]) + (bias ? to_float(bias[i % channels]) : 0.0f);
    y[i] = from_float<T>(kRelu ? relu(sum) : sum);
  }
}

// As a gradient of type T, whatever it is stored in: replicas must have what one worker has.
template <typename T, typename Out>
__device__ Out rounded(float sum) {
  return from_float<Out>(to_float(from_float<T>(sum)));
}

// What stands behind the rows is summed too, and left out at the end.
template <typename T, typename Out>
__global__ void __launch_bounds__(SumGrid::kThreads)
    channel_sums(const T* dy, Out* db, int64_t rows, int64_t channels, int64_t pitch, int lanes, float* partial,
                 unsigned* counters) {
  constexpr int kSize = Vector<T>::kSize;
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows_of_block = SumGrid::kThreads / lanes;
  const int64_t first = (int64_t{blockIdx.y} * lanes + lane) * kSize;
  float sum[kSize] = {}, none[kSize] = {};
  if (first < pitch) {
    const int64_t stride = int64_t{gridDim.x} * rows_of_block;
#pragma unroll 4
    for (int64_t r = int64_t{blockIdx.x} * rows_of_block + row; r < rows; r += stride) {
      const Floats<T> value = load(dy + r * pitch + first);
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum[k] += value.at[k];
    }
  }
  Totals<T>::add(sum, none, lanes, pitch, partial, counters, [&](int64_t c, double total, double) {
    if (c < channels) db[c] = rounded<T, Out>(static_cast<float>(total));
  });
}

template <typename T>
__global__ void __launch_bounds__(SumGrid::kThreads, 2)
    moments(const T* y, float* sums, int64_t rows, int64_t channels, int lanes, float* partial, unsigned* counters) {
  constexpr int kSize = Vector<T>::kSize;
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows_of_block = SumGrid::kThreads / lanes;
  const int64_t first = (int64_t{blockIdx.y} * lanes + lane) * kSize;
  float sum[kSize] = {}, squares[kSize] = {};
  if (first < channels) {
    const int64_t stride = int64_t{gridDim.x} * rows_of_block;
#pragma unroll 4
    for (int64_t r = int64_t{blockIdx.x} * rows_of_block + row; r < rows; r += stride) {
      const Floats<T> value = load(y + (rows - 1 - r) * channels + first);  // the end was written last
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        sum[k] += value.at[k];
        squares[k] += value.at[k] * value.at[k];
      }
    }
  }
  Totals<T>::add(sum, squares, lanes, channels, partial, counters, [&](int64_t c, double total, double total_squares) {
    sums[c] = static_cast<float>(total);
    sums[channels + c] = static_cast<float>(total_squares);
  });
}

// Any number of columns, a thread each: for the few rows of a linear layer.
template <typename T, typename Out>
__global__ void column_sums(const T* dy, Out* db, int64_t rows, int64_t columns, int64_t pitch) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += to_float(dy[r * pitch + c]);
  db[c] = rounded<T, Out>(sum);
}

template <typename T>
__global__ void to_floats(const T* from, float* to, int64_t vectors) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < vectors; i += stride) {
    const Floats<T> values = load(from + i * kSize);
#pragma unroll
    for (int k = 0; k < kSize; ++k) to[i * kSize + k] = values.at[k];
  }
}

// Whether rows can be summed in vectors: those of wider rows than a language has words would need more counters.
bool has_vectors(const BiasShape& shape) {
  constexpr int64_t kFewestOfGroup = 32;  // channels that have a counter, in f32
  return shape.pitch % 8 == 0 && shape.pitch <= Device::kNumCounters * kFewestOfGroup;
}

}  // namespace

void add_bias(const Device& device, const BiasShape& shape, void* y, const void* bias, bool has_relu) {
  with_type(shape.dtype, [&]<typename T>() {
    auto* to = static_cast<T*>(y);
    const auto* add = static_cast<const T*>(bias);
    const int64_t elements = shape.rows * shape.channels;
    if (shape.channels % 8 == 0) {
      const int64_t vectors = shape.channels / Vector<T>::kSize, all = elements / Vector<T>::kSize;
      const auto kernel = has_relu ? add_bias_rows<T, true> : add_bias_rows<T, false>;
      kernel<<<grid_for(device, all, 256, 16), 256, 0, device.stream>>>(to, add, vectors, all);
    } else {
      const auto kernel = has_relu ? add_bias_elements<T, true> : add_bias_elements<T, false>;
      kernel<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(to, add, shape.channels, elements);
    }
  });
  MILLRACE_LAUNCHED("add_bias");
}

size_t bias_gradient_scratch(const Device& device, const BiasShape& shape) {
  if (!has_vectors(shape)) return 0;
  return with_type(shape.dtype, [&]<typename T>() {
    return SumGrid::of<T>(device, shape.rows, shape.pitch).scratch_bytes(shape.pitch);
  });
}

void bias_gradient(const Device& device, const BiasShape& shape, const void* dy, void* db, DType db_type,
                   void* scratch) {
  with_type(shape.dtype, [&]<typename T>() {
    with_type(db_type, [&]<typename Out>() {
      const auto* from = static_cast<const T*>(dy);
      auto* to = static_cast<Out*>(db);
      if (!has_vectors(shape)) {
        const auto blocks = static_cast<unsigned>((shape.channels + 63) / 64);
        column_sums<<<blocks, 64, 0, device.stream>>>(from, to, shape.rows, shape.channels, shape.pitch);
        return;
      }
      const SumGrid grid = SumGrid::of<T>(device, shape.rows, shape.pitch);
      channel_sums<<<grid.blocks, SumGrid::kThreads, 0, device.stream>>>(
          from, to, shape.rows, shape.channels, shape.pitch, grid.lanes, static_cast<float*>(scratch), device.counters);
    });
  });
  MILLRACE_LAUNCHED("bias_gradient");
}

void channel_moments(const Device& device, const BiasShape& shape, const void* y, float* sums, void* scratch) {
  with_type(shape.dtype, [&]<typename T>() {
    const SumGrid grid = SumGrid::of<T>(device, shape.rows, shape.channels);
    moments<<<grid.blocks, SumGrid::kThreads, 0, device.stream>>>(static_cast<const T*>(y), sums, shape.rows,
                                                                  shape.channels, grid.lanes,
                                                                  static_cast<float*>(scratch), device.counters);
  });
  MILLRACE_LAUNCHED("moments");
}

void convert(const Device& device, const void* from, DType from_type, float* to, int64_t elements) {
  with_type(from_type, [&]<typename T>() {
    const int64_t vectors = elements / Vector<T>::kSize;
    to_floats<<<grid_for(device, vectors, 256), 256, 0, device.stream>>>(static_cast<const T*>(from), to, vectors);
  });
  MILLRACE_LAUNCHED("to_floats");
}

}  // namespace millrace::backend::cuda
