#include "millrace/graph/graph.h"

#include <algorithm>

namespace millrace::graph {

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::Conv2d: return "conv2d";
    case OpKind::Linear: return "linear";
    case OpKind::EmbeddingBag: return "embedding_bag";
    case OpKind::Embedding: return "embedding";
    case OpKind::Positions: return "positions";
    case OpKind::ImageTokens: return "image_tokens";
    case OpKind::SelectToken: return "select_token";
    case OpKind::SpanLogits: return "span_logits";
    case OpKind::LayerNorm: return "layer_norm";
    case OpKind::Gelu: return "gelu";
    case OpKind::Tanh: return "tanh";
    case OpKind::Attention: return "attention";
    case OpKind::BatchNorm: return "batch_norm";
    case OpKind::Relu: return "relu";
    case OpKind::MaxPool: return "max_pool";
    case OpKind::AvgPool: return "avg_pool";
    case OpKind::AdaptiveAvgPool: return "adaptive_avg_pool";
    case OpKind::Flatten: return "flatten";
    case OpKind::Dropout: return "dropout";
    case OpKind::Add: return "add";
    case OpKind::SoftmaxCrossEntropy: return "softmax_cross_entropy";
    case OpKind::Accumulate: return "accumulate";
    case OpKind::CheckFinite: return "check_finite";
    case OpKind::SumSquares: return "sum_squares";
    case OpKind::ClipNorm: return "clip_norm";
    case OpKind::AdjustScale: return "adjust_scale";
    case OpKind::SgdStep: return "sgd_step";
    case OpKind::AdamStep: return "adam_step";
    case OpKind::LambStep: return "lamb_step";
  }
  return "?";
}

OpId Graph::producer(ValueId value) const {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].output == value) return static_cast<OpId>(i);
  }
  return kNone;
}

int64_t Graph::trainable_elements() const {
  int64_t count = 0;
  for (const Param& param : params) {
    if (param.trainable()) count += param.shape.elements();
  }
  return count;
}

int64_t Graph::parameter_elements() const {
  int64_t count = 0;
  for (const Param& param : params) {
    if (!param.is_statistic()) count += param.shape.elements();
  }
  return count;
}

int num_layers(const Graph& graph) {
  int deepest = 1;
  for (const Param& param : graph.params) deepest = std::max(deepest, param.depth);
  return deepest - 1;
}

void freeze(Graph& graph, int layers) {
  if (layers == 0) return;
  for (Param& param : graph.params) param.frozen |= param.depth <= layers;
  for (Op& op : graph.ops) op.frozen |= op.depth <= layers;
}

bool has_blocks(const Graph& graph) {
  return std::any_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.block != kNone; });
}

double forward_flops(const Graph& graph, const Op& op) {
  const auto out = static_cast<double>(graph.values[op.output].shape.elements());
  if (op.kind == OpKind::Conv2d || op.kind == OpKind::Linear) {
    const Shape& weight = graph.params[op.params[0]].shape;
    const int64_t products = weight.elements() / weight[0];  // of one output
    return 2.0 * out * static_cast<double>(products);
  }
  if (const auto* attention = std::get_if<AttentionAttrs>(&op.attrs)) {
    // Two products of L x L x D, half of them where only earlier tokens are seen.
    const auto length = static_cast<double>(graph.values[op.output].shape[1]);
    return 4.0 * out * length * (attention->causal ? 0.5 : 1.0);
  }
  return 0.0;
}

}  // namespace millrace::graph
