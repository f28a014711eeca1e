// Attention: on tensor cores where values have sixteen bits and heads are whole vectors, in floats where not. Backward
// is one kernel for the gradient of the queries and one for that of keys and values.
#include "millrace/backend/cuda/attention_mma.cuh"
#include "millrace/backend/cuda/attention_plain.cuh"
#include "millrace/backend/cuda/attention_problem.cuh"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

template <typename T>
struct Kernels {
  void (*forward)(AttentionProblem, const StepContext*, const T*, T*, float*);
  void (*query_grad)(AttentionProblem, const StepContext*, AttentionGradient<T>);
  void (*key_value_grad)(AttentionProblem, const StepContext*, AttentionGradient<T>);
  int rows, threads;  // of a block
  size_t shared_bytes;
};

template <typename T, int kWidth>
Kernels<T> mma_kernels() {
  using namespace mma_attention;
  return {forward<T, kWidth>, query_grad<T, kWidth>, key_value_grad<T, kWidth>, kRows, kThreads, 0};
}
template <typename T, int kChunks>
Kernels<T> plain_kernels(const AttentionProblem& p) {
  using namespace plain_attention;
  return {forward<T, kChunks>, query_grad<T, kChunks>, key_value_grad<T, kChunks>, kRows, kThreads,
          Workspace::bytes(p)};
}

// Heads begin at whole vectors; a narrower head is filled up with zeros.
bool takes_mma(DType dtype, int width) {
  return is_half(dtype) && width % 8 == 0 && width <= mma_attention::kMostWidth;
}

template <typename T>
Kernels<T> kernels_for(const AttentionProblem& p) {
  if constexpr (sizeof(T) == 2) {
    if (p.width % 8 == 0) {
      if (p.width <= 16) return mma_kernels<T, 16>();
      if (p.width <= 32) return mma_kernels<T, 32>();
      if (p.width <= 64) return mma_kernels<T, 64>();
      if (p.width <= 96) return mma_kernels<T, 96>();
      if (p.width <= 128) return mma_kernels<T, 128>();
    }
  }
  if (p.width <= 32) return plain_kernels<T, 1>(p);
  if (p.width <= 64) return plain_kernels<T, 2>(p);
  if (p.width <= 128) return plain_kernels<T, 4>(p);
  return plain_kernels<T, 8>(p);
}

// More than 48 KiB have to be asked for.
template <typename Function>
void allow_shared(Function function, size_t bytes) {
  MILLRACE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(function),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

template <typename T>
Task forward_task(const Device& device, const AttentionProblem& p, const T* qkv, T* y, float* saved) {
  const Kernels<T> kernels = kernels_for<T>(p);
  if (kernels.shared_bytes > 0) allow_shared(kernels.forward, kernels.shared_bytes);
  const unsigned blocks = attention_blocks(p, kernels.rows);
  return [=](const StepContext&) {
    kernels.forward<<<blocks, kernels.threads, kernels.shared_bytes, device.stream>>>(p, device.context, qkv, y, saved);
    MILLRACE_LAUNCHED("attention forward");
  };
}

template <typename T>
Task input_grad_task(const Device& device, const AttentionProblem& p, const AttentionGradient<T>& to) {
  const Kernels<T> kernels = kernels_for<T>(p);
  if (kernels.shared_bytes > 0) {
    allow_shared(kernels.query_grad, kernels.shared_bytes);
    allow_shared(kernels.key_value_grad, kernels.shared_bytes);
  }
  const unsigned blocks = attention_blocks(p, kernels.rows);
  return [=](const StepContext&) {
    kernels.query_grad<<<blocks, kernels.threads, kernels.shared_bytes, device.stream>>>(p, device.context, to);
    MILLRACE_LAUNCHED("attention query_grad");
    kernels.key_value_grad<<<blocks, kernels.threads, kernels.shared_bytes, device.stream>>>(p, device.context, to);
    MILLRACE_LAUNCHED("attention key_value_grad");
  };
}

}  // namespace

Kernel prepare_attention(const Device& device, const NodeView& view) {
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
  Kernel kernel;
  kernel.algorithm = takes_mma(dtype, width) ? "tensor cores" : "floats";
  if (!forward) kernel.scratch_bytes = sizeof(float) * static_cast<size_t>(view.read(3).elements());
  kernel.bind = [=](const Bindings& at) {
    AttentionProblem p = problem;
    p.tokens = masked ? at.read<int32_t>(tokens) : nullptr;
    return with_type(dtype, [&]<typename T>() -> Task {
      if (forward) {
        return forward_task(device, p, at.read<T>(0), at.write<T>(0), saves ? at.write<float>(1) : nullptr);
      }
      return input_grad_task(device, p,
                             AttentionGradient<T>{at.read<T>(0), at.read<T>(1), at.read<T>(2), at.read<float>(3),
                                                  static_cast<float*>(at.scratch), at.write<T>(0)});
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
