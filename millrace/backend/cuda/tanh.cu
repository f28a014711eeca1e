#include "millrace/backend/cuda/activation.cuh"

namespace millrace::backend::cuda {
namespace {

struct Tanh {
  __device__ static float value(float x) { return tanhf(x); }
  __device__ static float times_slope(float dy, float y) { return dy * (1 - y * y); }
};

}  // namespace

Kernel prepare_tanh(const Device& device, const NodeView& view) { return prepare_activation<Tanh>(device, view); }

}  // namespace millrace::backend::cuda
