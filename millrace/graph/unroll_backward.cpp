// What each operator's gradients read and write.
#include <algorithm>
#include <cassert>

#include "millrace/graph/unroller.h"

namespace millrace::graph {
namespace {

bool has_relu(const Op& op) {
  if (const auto* conv = std::get_if<Conv2dAttrs>(&op.attrs)) return conv->relu;
  if (const auto* linear = std::get_if<LinearAttrs>(&op.attrs)) return linear->relu;
  return false;
}

}  // namespace

BufferId Unroller::gradient_of(ValueId value, const Op& op) {
  std::vector<BufferId>& parts = parts_[value];
  assert(!parts.empty());
  BufferId sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const BufferId total = gradient_like(value_buffer_[value]);
    program_.nodes.push_back(
        {OpKind::Add, Pass::Forward, id_of(op), {}, op.name, {sum, parts[i]}, {total}, {{0, 0}, {0, 1}}});
    program_.nodes.back().pass = Pass::InputGrad;
    sum = total;
  }
  return sum;
}

std::pair<BufferId, BufferId> Unroller::gradient_parts_of(ValueId value, const Op& op) {
  const std::vector<BufferId>& parts = parts_[value];
  if (parts.size() == 2 && parts[0] != parts[1]) return {parts[0], parts[1]};
  return {gradient_of(value, op), kNone};
}

BufferId Unroller::input_gradient(const Op& op, int input) {
  const BufferId gradient = gradient_like(value_buffer_[op.inputs[input]]);
  parts_[op.inputs[input]].push_back(gradient);
  return gradient;
}

void Unroller::backward(const Op& op) {
  const BufferId x = value_buffer_[op.inputs[0]];
  const bool wants_dx = differentiable_[op.inputs[0]];
  if (op.kind == OpKind::SoftmaxCrossEntropy) {
    if (!wants_dx) return;
    std::vector<BufferId> reads{x, program_.labels, op_saved(op)};
    if (scales_) reads.push_back(program_.agreement);
    emit(op, op.kind, Pass::InputGrad, std::move(reads), {input_gradient(op, 0)}, {{0, 0}});
    return;
  }
  if (!differentiable_[op.output]) return;
  const auto* norm = std::get_if<BatchNormAttrs>(&op.attrs);
  const bool adds_itself = options_.style.sums_in_norm && norm && norm->residual && norm->relu;
  auto [dy, dy2] = adds_itself ? gradient_parts_of(op.output, op) : std::pair(gradient_of(op.output, op), kNone);
  switch (op.kind) {
    case OpKind::Conv2d:
    case OpKind::Linear: {
      if (has_relu(op)) {
        const BufferId masked = gradient_like(value_buffer_[op.output]);
        emit(op, OpKind::Relu, Pass::InputGrad, {dy, value_buffer_[op.output]}, {masked}, {{0, 0}});
        dy = masked;
      }
      if (wants_dx) emit(op, op.kind, Pass::InputGrad, {dy, weight_[op.params[0]]}, {input_gradient(op, 0)});
      if (waits_for_norm(op)) {
        waiting_ = &op;
        waiting_dy_ = dy;
      } else {
        emit_weight_grad(op, {x, dy}, op.params);
      }
      break;
    }
    case OpKind::EmbeddingBag:
    case OpKind::Embedding: emit_weight_grad(op, {dy, x}, op.params); break;
    case OpKind::Positions:
      if (wants_dx) parts_[op.inputs[0]].push_back(dy);
      emit_weight_grad(op, {dy}, op.params);
      break;
    case OpKind::ImageTokens:
      if (wants_dx) emit(op, op.kind, Pass::InputGrad, {dy}, {input_gradient(op, 0)});
      emit_weight_grad(op, {dy}, op.params);
      break;
    case OpKind::LayerNorm:
      if (wants_dx) {
        emit(op, op.kind, Pass::InputGrad, {dy, x, weight_[op.params[0]], op_saved(op)}, {input_gradient(op, 0)});
      }
      emit_weight_grad(op, {dy, x, op_saved(op)}, op.params);
      break;
    case OpKind::Attention: {
      std::vector<BufferId> reads{dy, x, value_buffer_[op.output], op_saved(op)};
      if (op.inputs.size() > 1) reads.push_back(value_buffer_[op.inputs[1]]);
      emit(op, op.kind, Pass::InputGrad, std::move(reads), {input_gradient(op, 0)});
      break;
    }
    case OpKind::Gelu: emit(op, op.kind, Pass::InputGrad, {dy, x}, {input_gradient(op, 0)}, {{0, 0}}); break;
    case OpKind::Tanh:
      emit(op, op.kind, Pass::InputGrad, {dy, value_buffer_[op.output]}, {input_gradient(op, 0)}, {{0, 0}});
      break;
    case OpKind::SelectToken: emit(op, op.kind, Pass::InputGrad, {dy}, {input_gradient(op, 0)}); break;
    case OpKind::SpanLogits:
      emit(op, op.kind, Pass::InputGrad, {dy, value_buffer_[op.inputs[1]]}, {input_gradient(op, 0)});
      break;
    case OpKind::BatchNorm: {
      const BatchNormAttrs& attrs = *norm;
      const BufferId dsums = add_buffer(
          {"d " + op.name + ".sums", program_.buffers[op_saved(op)].shape, wide(graph_.dtype), BufferRole::Gradient});
      std::vector<BufferId> reads{dy, x, weight_[op.params[0]], weight_[op.params[1]], op_saved(op)};
      if (attrs.residual && attrs.relu) reads.push_back(value_buffer_[op.output]);
      if (dy2 != kNone) reads.push_back(dy2);
      std::vector<BufferId> writes{input_gradient(op, 0), dsums};
      std::vector<InPlace> in_place;
      if (attrs.residual && differentiable_[op.inputs[1]]) {
        if (attrs.relu) {
          in_place.push_back({static_cast<int>(writes.size()), 0});
          writes.push_back(input_gradient(op, 1));
        } else {
          parts_[op.inputs[1]].push_back(dy);
        }
      }
      const Op* conv = waiting_ && waiting_->inputs[0] == op.output ? std::exchange(waiting_, nullptr) : nullptr;
      BufferId y = kNone;
      if (conv) {
        Buffer again = program_.buffers[value_buffer_[op.output]];
        again.name += " again";
        writes.push_back(y = add_buffer(std::move(again)));
      }
      in_place.push_back({0, 1});
      in_place.push_back({0, 0});
      emit(op, op.kind, Pass::InputGrad, std::move(reads), std::move(writes), std::move(in_place));
      if (conv) emit_weight_grad(*conv, {y, waiting_dy_}, conv->params);
      emit_weight_grad(op, {dsums}, {op.params[0], op.params[1]});
      break;
    }
    case OpKind::Relu:
      emit(op, op.kind, Pass::InputGrad, {dy, value_buffer_[op.output]}, {input_gradient(op, 0)}, {{0, 0}});
      break;
    case OpKind::MaxPool: emit(op, op.kind, Pass::InputGrad, {dy, op_saved(op)}, {input_gradient(op, 0)}); break;
    case OpKind::AvgPool:
    case OpKind::AdaptiveAvgPool:
    case OpKind::Flatten: emit(op, op.kind, Pass::InputGrad, {dy}, {input_gradient(op, 0)}); break;
    case OpKind::Dropout: emit(op, op.kind, Pass::InputGrad, {dy}, {input_gradient(op, 0)}, {{0, 0}}); break;
    case OpKind::Add:
      // Both addends have the gradient of the sum: they share its buffer.
      for (ValueId input : op.inputs) {
        if (differentiable_[input]) parts_[input].push_back(dy);
      }
      break;
    default: assert(false);
  }
}

bool Unroller::waits_for_norm(const Op& op) const {
  const OpId producer = graph_.producer(op.inputs[0]);
  if (!options_.style.remakes_norm || op.kind != OpKind::Conv2d || producer < stage_.begin()) return false;
  const auto* norm = std::get_if<BatchNormAttrs>(&graph_.ops[producer].attrs);
  return norm && !norm->residual && readers(op.inputs[0]) == 1;
}

void Unroller::emit_weight_grad(const Op& op, std::vector<BufferId> reads, const std::vector<ParamId>& params) {
  const auto is_trainable = [&](ParamId id) { return graph_.params[id].trainable(); };
  if (std::none_of(params.begin(), params.end(), is_trainable)) return;
  const bool sums = options_.microbatches > 1;
  std::vector<BufferId> gradients;
  for (ParamId id : params) {
    const Param& param = graph_.params[id];
    const bool keeps = param.trainable() && (options_.keeps_gradients || readers_of_param_[id] > 1);
    const BufferRole role = keeps && !sums ? BufferRole::SharedGradient : BufferRole::WeightGradient;
    const DType dtype = role == BufferRole::SharedGradient ? wide(graph_.dtype) : weight_type(param);
    gradients.push_back(add_buffer({"d " + param.name, param.shape, dtype, role, id}));
  }
  emit(op, op.kind, Pass::WeightGrad, std::move(reads), gradients);
  for (size_t i = 0; i < params.size(); ++i) {
    if (!is_trainable(params[i])) continue;
    BufferId gradient = gradients[i];
    if (sums) {
      const Param& param = graph_.params[params[i]];
      const BufferId total =
          add_buffer({"sum " + param.name, param.shape, wide(graph_.dtype), BufferRole::GradientSum, params[i]});
      program_.nodes.push_back(
          {OpKind::Accumulate, Pass::WeightGrad, id_of(op), {}, op.name, {total, gradient}, {total}, {}});
      gradient = total;
    }
    if (readers_of_param_[params[i]] > 1) {
      emit_shared_step(op, params[i], gradient);
    } else {
      const bool late = sums || options_.keeps_gradients || updates_late(graph_, options_.style, options_.rule);
      emit_step(op, params[i], gradient, late);
    }
  }
}

}  // namespace millrace::graph
