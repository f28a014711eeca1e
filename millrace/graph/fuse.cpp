#include "millrace/graph/fuse.h"

#include <utility>

namespace millrace::graph {
namespace {

// The only operator that reads `value`, or kNone.
OpId sole_reader(const std::vector<Op>& ops, const std::vector<bool>& gone, ValueId value) {
  OpId reader = kNone;
  for (OpId id = 0; id < static_cast<OpId>(ops.size()); ++id) {
    if (gone[id]) continue;
    for (ValueId input : ops[id].inputs) {
      if (input != value) continue;
      if (reader != kNone) return kNone;
      reader = id;
    }
  }
  return reader;
}

bool set_relu(Op& op) {
  if (auto* conv = std::get_if<Conv2dAttrs>(&op.attrs)) return conv->relu = true;
  if (auto* linear = std::get_if<LinearAttrs>(&op.attrs)) return linear->relu = true;
  if (auto* norm = std::get_if<BatchNormAttrs>(&op.attrs)) return norm->relu = true;
  if (op.kind == OpKind::MaxPool) return std::get<PoolAttrs>(op.attrs).relu = true;
  return false;
}

// conv -> relu -> max_pool becomes conv -> max_pool -> relu. Only after operators without batch norm, whose own
// backward pass makes the mask at no cost.
void move_relu_behind_max_pool(Graph& graph) {
  const std::vector<bool> none(graph.ops.size(), false);
  for (size_t id = 1; id + 1 < graph.ops.size(); ++id) {
    Op& before = graph.ops[id - 1];
    Op& relu = graph.ops[id];
    Op& pool = graph.ops[id + 1];
    const bool chain = relu.kind == OpKind::Relu && pool.kind == OpKind::MaxPool && before.kind == OpKind::Conv2d &&
                       relu.inputs[0] == before.output && pool.inputs[0] == relu.output;
    if (!chain || sole_reader(graph.ops, none, before.output) == kNone ||
        sole_reader(graph.ops, none, relu.output) == kNone) {
      continue;
    }
    const ValueId middle = relu.output, last = pool.output;
    pool.inputs[0] = before.output;
    pool.output = middle;
    relu.inputs[0] = middle;
    relu.output = last;
    graph.values[middle].shape = graph.values[last].shape;
    std::swap(relu, pool);
  }
}

}  // namespace

Graph fuse(const Graph& graph) {
  Graph fused = graph;
  move_relu_behind_max_pool(fused);
  std::vector<Op>& ops = fused.ops;
  std::vector<bool> gone(ops.size(), false);
  std::vector<OpId> producer(fused.values.size(), kNone);
  for (OpId id = 0; id < static_cast<OpId>(ops.size()); ++id) producer[ops[id].output] = id;

  auto absorb = [&](OpId into, OpId absorbed) {
    ops[into].output = ops[absorbed].output;
    producer[ops[into].output] = into;
    gone[absorbed] = true;
  };

  for (OpId id = 0; id < static_cast<OpId>(ops.size()); ++id) {
    if (ops[id].kind != OpKind::BatchNorm) continue;
    const OpId reader = sole_reader(ops, gone, ops[id].output);
    if (reader == kNone || ops[reader].kind != OpKind::Add) continue;
    const auto& inputs = ops[reader].inputs;
    const ValueId other = inputs[0] == ops[id].output ? inputs[1] : inputs[0];
    // The other addend must exist when this operator runs.
    if (other == ops[id].output || producer[other] > id) continue;
    std::get<BatchNormAttrs>(ops[id].attrs).residual = true;
    ops[id].inputs.push_back(other);
    absorb(id, reader);
  }
  for (OpId id = 0; id < static_cast<OpId>(ops.size()); ++id) {
    if (gone[id]) continue;
    const OpId reader = sole_reader(ops, gone, ops[id].output);
    if (reader != kNone && ops[reader].kind == OpKind::Relu && set_relu(ops[id])) absorb(id, reader);
  }

  std::vector<Op> kept;
  for (size_t id = 0; id < ops.size(); ++id) {
    if (!gone[id]) kept.push_back(std::move(ops[id]));
  }
  ops = std::move(kept);
  return fused;
}

}  // namespace millrace::graph
