#include <algorithm>

#include "millrace/graph/unroller.h"

namespace millrace::graph {

void Unroller::forward(const Op& op, bool training) {
  const Pass pass = training ? Pass::Forward : Pass::Evaluate;
  if (op.kind == OpKind::Dropout && !training) {
    value_buffer_[op.output] = value_buffer_[op.inputs[0]];
    return;
  }
  std::vector<BufferId> reads, writes;
  for (ValueId input : op.inputs) reads.push_back(value_buffer_[input]);
  if (op.kind == OpKind::SoftmaxCrossEntropy) {
    program_.logits = reads[0];
    writes.push_back(program_.metrics);
    if (training) {
      writes.push_back(op_saved(op) =
                           saved(op, "saved", {2, graph_.values[graph_.labels].shape.elements()}, wide(graph_.dtype)));
    }
    emit(op, op.kind, pass, std::move(reads), std::move(writes));
    return;
  }
  writes.push_back(value_buffer_[op.output] = buffer_of_value(op.output, BufferRole::Activation));
  std::vector<InPlace> in_place;
  switch (op.kind) {
    case OpKind::Conv2d:
    case OpKind::Linear:
      for (ParamId param : op.params) reads.push_back(weight_[param]);
      if (training && makes_sums(op)) {
        const Shape shape{2, graph_.values[op.output].shape[1], 1, 1};
        writes.push_back(op_saved(op) = saved(op, "sums", shape, DType::F32));
      }
      break;
    case OpKind::EmbeddingBag:
    case OpKind::Embedding: reads = {weight_[op.params[0]], value_buffer_[op.inputs[0]]}; break;
    case OpKind::Positions: in_place = {{0, 0}}; [[fallthrough]];
    case OpKind::ImageTokens: reads.push_back(weight_[op.params[0]]); break;
    case OpKind::LayerNorm:
      for (ParamId param : op.params) reads.push_back(weight_[param]);
      if (training) {
        const int64_t rows = graph_.values[op.output].shape.rows();
        writes.push_back(op_saved(op) = saved(op, "saved", {2, rows}, wide(graph_.dtype)));
      }
      break;
    case OpKind::Attention:
      if (training) {
        const Shape& y = graph_.values[op.output].shape;
        const Shape shape{y[0], std::get<AttentionAttrs>(op.attrs).heads, y[1]};
        writes.push_back(op_saved(op) = saved(op, "saved", shape, wide(graph_.dtype)));
      }
      break;
    case OpKind::BatchNorm: {
      reads.resize(1);
      for (ParamId param : op.params) reads.push_back(weight_[param]);
      if (op.inputs.size() == 2) {
        in_place.push_back({0, static_cast<int>(reads.size())});
        reads.push_back(value_buffer_[op.inputs[1]]);
      }
      const OpId producer = graph_.producer(op.inputs[0]);
      if (training && producer >= stage_.begin() && makes_sums(graph_.ops[producer])) {
        reads.push_back(saved_[producer]);
      }
      if (training) {
        const int64_t channels = graph_.params[op.params[0]].shape[0];
        writes.push_back(op_saved(op) = saved(op, "saved", {2, channels}, wide(graph_.dtype)));
        writes.push_back(weight_[op.params[2]]);
        writes.push_back(weight_[op.params[3]]);
      } else {
        in_place.push_back({0, 0});
      }
      break;
    }
    case OpKind::MaxPool:
      if (training) writes.push_back(op_saved(op) = saved(op, "argmax", graph_.values[op.output].shape, DType::U8));
      break;
    case OpKind::Add: in_place = {{0, 0}, {0, 1}}; break;
    case OpKind::Relu:
    case OpKind::Dropout: in_place = {{0, 0}}; break;
    default: break;
  }
  emit(op, op.kind, pass, std::move(reads), std::move(writes), std::move(in_place));
}

bool Unroller::makes_sums(const Op& op) const {
  if (!options_.style.sums_in_conv || graph_.dtype != DType::F16 || op.kind != OpKind::Conv2d) return false;
  const auto& conv = std::get<Conv2dAttrs>(op.attrs);
  if (conv.bias || conv.relu || readers(op.output) != 1) return false;
  return std::any_of(ops_.begin(), ops_.end(), [&](const Op& reader) {
    return reader.kind == OpKind::BatchNorm && reader.inputs[0] == op.output;
  });
}

}  // namespace millrace::graph
