// The operators of the reference backend, one file each, and what they share. Values are N x C x H x W, convolution
// weights O x I/groups x KH x KW, linear weights O x I. Long sums run in double whatever the element type.
#pragma once

#include <algorithm>
#include <utility>

#include "millrace/backend/optimizer.h"
#include "millrace/base/error.h"

namespace millrace::backend::reference {

Kernel prepare_conv(const NodeView& view);
Kernel prepare_linear(const NodeView& view);
Kernel prepare_embedding_bag(const NodeView& view);
Kernel prepare_embedding(const NodeView& view);
Kernel prepare_positions(const NodeView& view);
Kernel prepare_image_tokens(const NodeView& view);
Kernel prepare_select_token(const NodeView& view);
Kernel prepare_span_logits(const NodeView& view);
Kernel prepare_layer_norm(const NodeView& view);
Kernel prepare_gelu(const NodeView& view);
Kernel prepare_tanh(const NodeView& view);
Kernel prepare_attention(const NodeView& view);
Kernel prepare_batch_norm(const NodeView& view);
Kernel prepare_relu(const NodeView& view);
Kernel prepare_max_pool(const NodeView& view);
Kernel prepare_avg_pool(const NodeView& view);
Kernel prepare_adaptive_avg_pool(const NodeView& view);
Kernel prepare_flatten(const NodeView& view);
Kernel prepare_dropout(const NodeView& view);
Kernel prepare_add(const NodeView& view);
Kernel prepare_accumulate(const NodeView& view);
Kernel prepare_softmax_cross_entropy(const NodeView& view);
Kernel prepare_sum_squares(const NodeView& view);
Kernel prepare_clip_norm(const NodeView& view, const OptimizerOptions& options);
Kernel prepare_sgd_step(const NodeView& view, const OptimizerOptions& options);
Kernel prepare_adam_step(const NodeView& view, const OptimizerOptions& options);
Kernel prepare_lamb_step(const NodeView& view, const OptimizerOptions& options);

// For a pass the operator does not have.
[[noreturn]] void refuse_pass(const NodeView& view);

// The kernel whose `bind` is `bind<T>(bindings)`, T being the element type. Of every node it is that of the first
// read: what else a node touches is either the same or of a fixed type (labels, argmax, metrics).
template <typename Bind>
Kernel plain_kernel(const NodeView& view, Bind bind) {
  const graph::Buffer& first = view.program.buffers[view.node.reads[0]];
  Kernel kernel;
  kernel.algorithm = "plain loops";
  if (first.dtype == DType::F32) {
    kernel.bind = [bind = std::move(bind)](const Bindings& at) -> Task { return bind.template operator()<float>(at); };
  } else if (first.dtype == DType::F64) {
    kernel.bind = [bind = std::move(bind)](const Bindings& at) -> Task { return bind.template operator()<double>(at); };
  } else {
    fail_input("{}: the reference backend computes in f32 or f64, buffer \"{}\" is {}", view.node.name, first.name,
               name_of(first.dtype));
  }
  return kernel;
}

// What a step of any optimizer works on; null where it has none of it.
template <typename T>
struct StepOperands {
  const T* old_weight;  // may be an older version's memory, or the weight's
  T *weight, *gradient, *velocity, *second_moment;
  const float* agreement;
  ParamRule rule;

  StepOperands(const ParamRule& of, const Bindings& at)
      : old_weight(at.read<T>(0)), weight(at.write<T>(0)), gradient(static_cast<T*>(at.reads[1])), rule(of) {
    const auto find = [&](int read) { return read < 0 ? nullptr : at.reads[static_cast<size_t>(read)]; };
    velocity = static_cast<T*>(find(of.at.velocity));
    second_moment = static_cast<T*>(find(of.at.second_moment));
    agreement = static_cast<const float*>(find(of.at.agreement));
  }
  T rate(const StepContext& context) const { return T{context.learning_rate} * rule.rate; }
  T gradient_factor() const { return rule.at.clips ? agreement[graph::kClip] : 1; }
  void clear_gradient(int64_t elements) const {
    if (rule.clears_gradient) std::fill(gradient, gradient + elements, T{0});
  }
};

// Keeps NaN, so that a run that has diverged shows it.
template <typename T>
T relu(T x) {
  return x < 0 ? T{0} : x;
}

// Offsets into a row-major N x C x H x W tensor.
struct Nchw {
  int64_t n, c, h, w;

  explicit Nchw(const Shape& shape) : n(shape[0]), c(shape[1]), h(shape[2]), w(shape[3]) {}
  int64_t at(int64_t in, int64_t ic, int64_t ih, int64_t iw) const { return ((in * c + ic) * h + ih) * w + iw; }
  bool inside(int64_t ih, int64_t iw) const { return ih >= 0 && ih < h && iw >= 0 && iw < w; }
};

// The input position that cell `k` of the window for output `out` looks at, along one axis; outside the input it is
// padding.
inline int64_t window_position(int64_t out, int64_t k, int stride, int pad, int dilation) {
  return out * stride - pad + k * dilation;
}

}  // namespace millrace::backend::reference
