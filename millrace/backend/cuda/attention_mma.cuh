// Attention on tensor cores, for sixteen bits and heads that are whole vectors. Scores and weights stay in registers;
// softmax and sums are floats.
#pragma once

#include "millrace/backend/cuda/attention_dropout.cuh"
#include "millrace/backend/cuda/attention_problem.cuh"

namespace millrace::backend::cuda::mma_attention {

// Heads begin at whole vectors; a narrower head is filled up with zeros.
bool takes(DType dtype, int width);

size_t forward_scratch(const AttentionProblem& p);
template <typename T>
Task forward_task(const Device& device, const AttentionProblem& p, const T* qkv, T* y, float* saved, void* scratch);

size_t input_grad_scratch(const AttentionProblem& p);
template <typename T>
Task input_grad_task(const Device& device, const AttentionProblem& p, const T* dy, const T* qkv, const T* y,
                     const float* saved, T* dqkv, void* scratch);

// body.operator()<kWidth>() for the narrowest kernel that takes such heads.
template <typename Body>
auto with_width(int width, Body&& body) {
  if (width <= 16) return body.template operator()<16>();
  if (width <= 32) return body.template operator()<32>();
  if (width <= 64) return body.template operator()<64>();
  if (width <= 96) return body.template operator()<96>();
  return body.template operator()<128>();
}

}  // namespace millrace::backend::cuda::mma_attention
