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

__global__ void add_members(float* own, int64_t count, int member, const float* others, int64_t pitch, int members) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += stride) {
    const auto value = [&](int m) { return m == member ? own[i] : others[(m < member ? m : m - 1) * pitch + i]; };
    float total = value(0);
    for (int m = 1; m < members; ++m) total += value(m);
    own[i] = total;
  }
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

void add_in_order(const Device& device, float* own, size_t count, int member, const float* others, size_t pitch,
                  int members) {
  const auto elements = static_cast<int64_t>(count);
  add_members<<<grid_for(device, elements, kThreads), kThreads, 0, device.stream>>>(
      own, elements, member, others, static_cast<int64_t>(pitch), members);
  MILLRACE_LAUNCHED("add_members");
}

void fill_random(const Device& device, void* memory, int64_t elements, DType dtype) {
  with_type(dtype, [&]<typename T>() {
    random<<<grid_for(device, elements, kThreads), kThreads, 0, device.stream>>>(static_cast<T*>(memory), elements);
  });
  MILLRACE_LAUNCHED("random");
}

}  // namespace millrace::backend::cuda
