#include "millrace/backend/cuda/host_calls.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void write_context(StepContext* to, StepContext context) { *to = context; }

__global__ void add(float* total, const float* part, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += stride) total[i] += part[i];
}

__global__ void scale(float* values, int64_t count, float factor) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += stride) values[i] *= factor;
}

template <typename T>
__global__ void random(T* values, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += stride) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    values[i] = from_float<T>(static_cast<float>((x >> 40) & 0xFFFF) * 0x1p-15f - 1.0f);
  }
}

}  // namespace

void set_context(const Device& device, const StepContext& context) {
  write_context<<<1, 1, 0, device.stream>>>(const_cast<StepContext*>(device.context), context);
  MILLRACE_LAUNCHED("write_context");
}

void add_floats(const Device& device, float* total, const float* part, size_t count) {
  const auto elements = static_cast<int64_t>(count);
  add<<<grid_for(device, elements, kThreads), kThreads, 0, device.stream>>>(total, part, elements);
  MILLRACE_LAUNCHED("add");
}

void scale_floats(const Device& device, float* values, size_t count, float factor) {
  const auto elements = static_cast<int64_t>(count);
  scale<<<grid_for(device, elements, kThreads), kThreads, 0, device.stream>>>(values, elements, factor);
  MILLRACE_LAUNCHED("scale");
}

void fill_random(const Device& device, void* memory, int64_t elements, DType dtype) {
  with_type(dtype, [&]<typename T>() {
    random<<<grid_for(device, elements, kThreads), kThreads, 0, device.stream>>>(static_cast<T*>(memory), elements);
  });
  MILLRACE_LAUNCHED("random");
}

}  // namespace millrace::backend::cuda
