#include "millrace/backend/cuda/activation.cuh"

namespace millrace::backend::cuda {
namespace {

struct Relu {
  __device__ static float value(float x) { return relu(x); }
  __device__ static float times_slope(float dy, float y) { return y > 0 ? dy : 0; }
};

}  // namespace

Kernel prepare_relu(const Device& device, const NodeView& view) { return prepare_activation<Relu>(device, view); }

}  // namespace millrace::backend::cuda
