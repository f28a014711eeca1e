// What becomes of gradients: sums of those that share a parameter, checks, optimizer steps.
#include <algorithm>

#include "millrace/graph/unroller.h"

namespace millrace::graph {

void Unroller::keep_state_of_frozen() {
  for (ParamId id = 0; id < static_cast<ParamId>(weight_.size()); ++id) {
    const Param& param = graph_.params[id];
    if (weight_[id] == kNone || !param.frozen || param.is_statistic()) continue;
    const auto keep = [&](const char* name, DType dtype, BufferRole role) {
      add_buffer({name + param.name, param.shape, dtype, role, id});
    };
    if (is_half(graph_.dtype)) keep("master ", DType::F32, BufferRole::Master);
    if (!options_.rule.may_unfreeze) continue;
    if (options_.rule.velocity) keep("velocity ", wide(graph_.dtype), BufferRole::Velocity);
    if (options_.rule.second_moment) keep("second moment ", wide(graph_.dtype), BufferRole::SecondMoment);
  }
}

void Unroller::emit_shared_step(const Op& op, ParamId param, BufferId gradient) {
  if (summed_[param] == kNone) {
    summed_[param] = gradient;
  } else {
    sums_.push_back({OpKind::Accumulate,
                     Pass::Update,
                     id_of(op),
                     {},
                     op.name,
                     {summed_[param], gradient},
                     {summed_[param], gradient},
                     {}});
  }
  if (id_of(op) != first_reader_here(param)) return;
  if (reads_elsewhere(param)) program_.tied.push_back(summed_[param]);
  emit_step(op, param, summed_[param], /*late=*/true);
}

OpId Unroller::first_reader_here(ParamId param) const {
  for (const Op& op : ops_) {
    if (std::find(op.params.begin(), op.params.end(), param) != op.params.end()) return id_of(op);
  }
  return kNone;
}

bool Unroller::reads_elsewhere(ParamId param) const {
  int here = 0;
  for (const Op& op : ops_) here += static_cast<int>(std::count(op.params.begin(), op.params.end(), param));
  return here < readers_of_param_[param];
}

void Unroller::emit_step(const Op& op, ParamId id, BufferId gradient, bool late) {
  const Param& param = graph_.params[id];
  Node step{options_.rule.step, Pass::Update, id_of(op), {}, op.name, {}, {}, {}};
  step.reads = {weight_[id], gradient};
  step.writes = {weight_[id]};
  const auto add_slot = [&](const char* name, DType dtype, BufferRole role) {
    const BufferId slot = add_buffer({name + param.name, param.shape, dtype, role, id});
    step.reads.push_back(slot);
    step.writes.push_back(slot);
  };
  if (options_.rule.velocity) add_slot("velocity ", wide(graph_.dtype), BufferRole::Velocity);
  if (options_.rule.second_moment) add_slot("second moment ", wide(graph_.dtype), BufferRole::SecondMoment);
  if (is_half(graph_.dtype)) add_slot("master ", DType::F32, BufferRole::Master);
  if (program_.agreement != kNone) step.reads.push_back(program_.agreement);
  (late ? deferred_ : program_.nodes).push_back(std::move(step));
}

void Unroller::append_updates() {
  program_.first_update = program_.nodes.size();
  for (Node& node : sums_) program_.nodes.push_back(std::move(node));
  program_.first_check = program_.nodes.size();
  if (program_.agreement != kNone) {
    const OpKind kind = options_.rule.sums_squares() ? OpKind::SumSquares : OpKind::CheckFinite;
    for (const Node& step : deferred_) {
      Node check{kind, Pass::Update, step.op, {}, step.name, {}, {}, {}};
      const ParamId param = program_.buffers[step.reads[0]].param;
      if (options_.rule.sums_squares()) check.attrs = SquaresAttrs{first_reader_[param] >= stage_.begin()};
      check.reads = {step.reads[1], program_.agreement};
      check.writes = {program_.agreement};
      program_.nodes.push_back(std::move(check));
    }
  }
  program_.first_step = program_.nodes.size();
  const auto emit_agreement = [&](OpKind kind) {
    Node node{kind, Pass::Update, id_of(ops_.front()), {}, ops_.front().name, {}, {}, {}};
    node.reads = node.writes = {program_.agreement};
    if (kind == OpKind::ClipNorm && program_.watch != kNone) {
      node.reads.push_back(program_.watch);
      node.writes.push_back(program_.watch);
    }
    program_.nodes.push_back(std::move(node));
  };
  if (program_.agreement != kNone && options_.rule.sums_squares()) emit_agreement(OpKind::ClipNorm);
  for (Node& node : deferred_) program_.nodes.push_back(std::move(node));
  if (scales_) emit_agreement(OpKind::AdjustScale);
}

}  // namespace millrace::graph
