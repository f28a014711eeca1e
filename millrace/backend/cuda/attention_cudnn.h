// Attention by cuDNN's fused kernels, which use more of the newest tensor cores than our own. They know neither a key
// that is not there in the middle of a sample nor our dropout, so they are for attention without both.
#pragma once

#include <optional>

#include "millrace/backend/backend.h"
#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

class ConvLibrary;

struct PlainAttention {
  int64_t rows, length, heads, width;  // width: features of one head
  bool causal;
  DType dtype;
};

// Nothing where cuDNN has no engine for it.
std::optional<Kernel> prepare_cudnn_attention_forward(ConvLibrary& library, const PlainAttention& p, bool saves);
std::optional<Kernel> prepare_cudnn_attention_grad(const Device& device, ConvLibrary& library, const PlainAttention& p);

}  // namespace millrace::backend::cuda
