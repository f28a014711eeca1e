// Attention: by cuDNN where it can be (attention_cudnn.h), by our own kernels on tensor cores where values have sixteen
// bits and heads are whole vectors (attention_mma.cuh), in floats where not (attention_plain.cuh).
#include "millrace/backend/cuda/attention_cudnn.h"
#include "millrace/backend/cuda/attention_mma.cuh"
#include "millrace/backend/cuda/attention_plain.cuh"
#include "millrace/backend/cuda/attention_problem.cuh"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

template <typename T>
struct PlainKernels {
  void (*forward)(AttentionProblem, const StepContext*, const T*, T*, float*);
  void (*query_grad)(AttentionProblem, const StepContext*, plain_attention::Gradient<T>);
  void (*key_value_grad)(AttentionProblem, const StepContext*, plain_attention::Gradient<T>);
};

template <typename T>
PlainKernels<T> plain_kernels(int width) {
  using namespace plain_attention;
  if (width <= 32) return {forward<T, 1>, query_grad<T, 1>, key_value_grad<T, 1>};
  if (width <= 64) return {forward<T, 2>, query_grad<T, 2>, key_value_grad<T, 2>};
  if (width <= 128) return {forward<T, 4>, query_grad<T, 4>, key_value_grad<T, 4>};
  return {forward<T, 8>, query_grad<T, 8>, key_value_grad<T, 8>};
}

template <typename T>
Task plain_forward(const Device& device, const AttentionProblem& p, const T* qkv, T* y, float* saved) {
  const auto kernel = plain_kernels<T>(p.width).forward;
  const size_t shared_bytes = plain_attention::Workspace::bytes(p);
  const unsigned blocks = attention_blocks(p, plain_attention::kRows);
  allow_shared(kernel, shared_bytes);
  return [=](const StepContext&) {
    kernel<<<blocks, plain_attention::kThreads, shared_bytes, device.stream>>>(p, device.context, qkv, y, saved);
    MILLRACE_LAUNCHED("attention forward");
  };
}

template <typename T>
Task plain_input_grad(const Device& device, const AttentionProblem& p, const plain_attention::Gradient<T>& to) {
  const PlainKernels<T> kernels = plain_kernels<T>(p.width);
  const size_t shared_bytes = plain_attention::Workspace::bytes(p);
  const unsigned blocks = attention_blocks(p, plain_attention::kRows);
  allow_shared(kernels.query_grad, shared_bytes);
  allow_shared(kernels.key_value_grad, shared_bytes);
  return [=](const StepContext&) {
    constexpr int kThreads = plain_attention::kThreads;
    kernels.query_grad<<<blocks, kThreads, shared_bytes, device.stream>>>(p, device.context, to);
    MILLRACE_LAUNCHED("attention query_grad");
    kernels.key_value_grad<<<blocks, kThreads, shared_bytes, device.stream>>>(p, device.context, to);
    MILLRACE_LAUNCHED("attention key_value_grad");
  };
}

}  // namespace

Kernel prepare_attention(const Device& device, ConvLibrary& library, const NodeView& view) {
  const bool forward = view.node.pass == Pass::Forward || view.node.pass == Pass::Evaluate;
  if (!forward && view.node.pass != Pass::InputGrad) refuse_pass(view);
  const auto& attrs = view.attrs<graph::AttentionAttrs>();
  const Shape& qkv_shape = view.read(forward ? 0 : 1);
  const int width = static_cast<int>(qkv_shape[2]) / (3 * attrs.heads), tokens = forward ? 1 : 4;
  if (width > plain_attention::kMostWidth) refuse_shape(view, "a head has 256 features at most");
  const bool masked = view.num_reads() > tokens, saves = view.num_writes() > 1;
  const bool has_planes = masked && view.read(tokens).rank() == 3;
  const AttentionProblem problem{static_cast<int>(qkv_shape[0]),
                                 static_cast<int>(qkv_shape[1]),
                                 attrs.heads,
                                 width,
                                 has_planes ? static_cast<int>(view.read(tokens)[1]) : 1,
                                 attrs.causal,
                                 1 / std::sqrt(static_cast<float>(width)),
                                 {view.node.name, view.node.pass == Pass::Evaluate ? 0.0 : attrs.dropout}};
  const DType dtype = dtype_of_read(view, 0);
  const bool on_tensor_cores = mma_attention::takes(dtype, width);
  if (on_tensor_cores && !masked && !problem.dropout.on) {
    const PlainAttention p{qkv_shape[0], qkv_shape[1], attrs.heads, width, attrs.causal, dtype};
    const std::optional<Kernel> kernel =
        forward ? prepare_cudnn_attention_forward(library, p, saves) : prepare_cudnn_attention_grad(device, library, p);
    if (kernel) return *kernel;
  }
  Kernel kernel;
  kernel.algorithm = on_tensor_cores ? "tensor cores" : "floats";
  if (on_tensor_cores) {
    kernel.scratch_bytes =
        forward ? mma_attention::forward_scratch(problem) : mma_attention::input_grad_scratch(problem);
  } else if (!forward) {
    kernel.scratch_bytes = sizeof(float) * static_cast<size_t>(view.read(3).elements());
  }
  kernel.bind = [=](const Bindings& at) {
    AttentionProblem p = problem;
    p.tokens = masked ? at.read<int32_t>(tokens) : nullptr;
    float* saved = forward && saves ? at.write<float>(1) : nullptr;
    return with_type(dtype, [&]<typename T>() -> Task {
      if constexpr (sizeof(T) == 2) {
        if (on_tensor_cores && forward) {
          return mma_attention::forward_task(device, p, at.read<T>(0), at.write<T>(0), saved, at.scratch);
        }
        if (on_tensor_cores) {
          return mma_attention::input_grad_task(device, p, at.read<T>(0), at.read<T>(1), at.read<T>(2),
                                                at.read<float>(3), at.write<T>(0), at.scratch);
        }
      }
      if (forward) return plain_forward(device, p, at.read<T>(0), at.write<T>(0), saved);
      return plain_input_grad(
          device, p,
          plain_attention::Gradient<T>{at.read<T>(0), at.read<T>(1), at.read<T>(2), at.read<float>(3),
                                       static_cast<float*>(at.scratch), at.write<T>(0)});
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
