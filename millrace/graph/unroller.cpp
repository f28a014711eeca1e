#include "millrace/graph/unroller.h"

#include <algorithm>

#include "millrace/base/error.h"

namespace millrace::graph {

Unroller::Unroller(const Graph& graph, const StageSlice& stage)
    : graph_(graph),
      stage_(stage),
      ops_(graph.ops.begin() + stage.begin(), graph.ops.begin() + stage.end(graph)),
      value_buffer_(graph.values.size(), kNone),
      weight_(graph.params.size(), kNone) {
  for (const Op& op : ops_) {
    for (ValueId input : op.inputs) bring_in(input);
    for (ParamId id : op.params) {
      if (weight_[id] != kNone) continue;  // another operator of the stage reads it too
      const Param& param = graph.params[id];
      const BufferRole role = param.frozen           ? BufferRole::Constant
                              : param.is_statistic() ? BufferRole::Statistic
                                                     : BufferRole::Weight;
      weight_[id] = add_buffer({param.name, param.shape, weight_type(param), role, id});
    }
    if (op.kind == OpKind::SoftmaxCrossEntropy) {
      program_.metrics = add_buffer({"metrics", {kNumMetrics}, DType::F64, BufferRole::Metric});
    }
  }
}

Program Unroller::evaluation() {
  for (const Op& op : ops_) forward(op, /*training=*/false);
  find_outputs();
  program_.first_backward = program_.first_update = program_.first_check = program_.first_step = program_.nodes.size();
  return std::move(program_);
}

Program Unroller::training(const TrainingOptions& options) {
  options_ = options;
  const bool learns = std::any_of(ops_.begin(), ops_.end(), [](const Op& op) { return !op.frozen; });
  // Gradients in f16 need a factor to stay above its smallest numbers.
  scales_ = learns && graph_.dtype == DType::F16;
  if (scales_ || (learns && options.rule.sums_squares())) {
    const int64_t squares = options.rule.sums_squares() ? static_cast<int64_t>(graph_.params.size()) : 0;
    program_.agreement = add_buffer({"agreement", {kSquares + squares}, DType::F32, BufferRole::Agreement});
    if (options.rule.watches) program_.watch = add_buffer({"watch", {squares}, DType::F32, BufferRole::Watch});
  }
  find_shared();
  keep_state_of_frozen();
  for (const Op& op : ops_) forward(op, /*training=*/!op.frozen);
  find_differentiable();
  find_outputs();
  program_.first_backward = program_.nodes.size();
  parts_.resize(graph_.values.size());
  // Later readers contribute first, wherever they are: every partition adds in one order.
  for (auto output = program_.outputs.rbegin(); output != program_.outputs.rend(); ++output) {
    if (!differentiable_[output->value]) continue;
    output->gradient = gradient_like(output->buffer);
    parts_[output->value].push_back(output->gradient);
  }
  int remade = kNone;
  for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
    if (op->frozen) continue;
    if (options.remakes_blocks && op->block != kNone && op->block != remade) remake(remade = op->block);
    backward(*op);
  }
  drop_unread();
  for (Crossing& input : program_.inputs) {
    if (differentiable_[input.value]) input.gradient = gradient_of(input.value, ops_.front());
  }
  append_updates();
  check_crossings();
  return std::move(program_);
}

void Unroller::bring_in(ValueId value) {
  if (value_buffer_[value] != kNone) return;
  if (value == graph_.features) {
    program_.features = value_buffer_[value] = buffer_of_value(value, BufferRole::Input);
  } else if (value == graph_.labels) {
    program_.labels = value_buffer_[value] = buffer_of_value(value, BufferRole::Input);
  } else if (const int maker = stage_.stage_of(graph_.producer(value)); maker != stage_.index) {
    value_buffer_[value] = buffer_of_value(value, BufferRole::Activation);
    program_.inputs.push_back({value, maker, value_buffer_[value]});
  }
}

void Unroller::find_outputs() {
  for (const StageEdge& edge : stage_edges(graph_, stage_.first)) {
    if (edge.from != stage_.index) continue;
    for (ValueId value : edge.values) program_.outputs.push_back({value, edge.to, value_buffer_[value]});
  }
}

void Unroller::check_crossings() const {
  for (const Crossing& input : program_.inputs) {
    for (const Crossing& output : program_.outputs) {
      if (input.buffer != output.buffer && (input.gradient == kNone || input.gradient != output.gradient)) continue;
      fail_input("{}: stage {} cannot begin with {}: it would only pass {} on; begin it elsewhere", graph_.name,
                 stage_.index, ops_.front().name, graph_.values[input.value].name);
    }
  }
}

void Unroller::find_shared() {
  readers_of_param_.assign(graph_.params.size(), 0);
  first_reader_.assign(graph_.params.size(), kNone);
  summed_.assign(graph_.params.size(), kNone);
  for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
    for (ParamId param : graph_.ops[op].params) {
      if (readers_of_param_[param]++ == 0) first_reader_[param] = op;
    }
  }
}

void Unroller::find_differentiable() {
  differentiable_.assign(graph_.values.size(), false);
  for (const Op& op : graph_.ops) {
    bool needed = false;
    for (ParamId param : op.params) needed |= graph_.params[param].trainable();
    for (ValueId input : op.inputs) needed |= differentiable_[input];
    differentiable_[op.output] = needed;
  }
}

int Unroller::readers(ValueId value) const {
  int count = 0;
  for (const Op& op : graph_.ops) {
    for (ValueId input : op.inputs) count += input == value ? 1 : 0;
  }
  return count;
}

void Unroller::remake(int block) {
  for (const Op& op : ops_) {
    if (op.block != block) continue;
    const size_t first = program_.nodes.size();
    forward(op, /*training=*/true);
    for (size_t i = first; i < program_.nodes.size(); ++i) remade_.push_back(i);
  }
}

void Unroller::drop_unread() {
  std::vector<int> reads(program_.buffers.size(), 0);
  for (const Node& node : program_.nodes) {
    for (BufferId id : node.reads) ++reads[id];
  }
  for (auto node = remade_.rbegin(); node != remade_.rend(); ++node) {
    const Node& made = program_.nodes[*node];
    const bool read = std::any_of(made.writes.begin(), made.writes.end(), [&](BufferId id) { return reads[id] > 0; });
    if (read) continue;
    for (BufferId id : made.reads) --reads[id];
    program_.nodes.erase(program_.nodes.begin() + static_cast<std::ptrdiff_t>(*node));
  }
}

void Unroller::emit(const Op& op, OpKind kind, Pass pass, std::vector<BufferId> reads, std::vector<BufferId> writes,
                    std::vector<InPlace> in_place) {
  program_.nodes.push_back(
      {kind, pass, id_of(op), op.attrs, op.name, std::move(reads), std::move(writes), std::move(in_place)});
}

Program training_program(const Graph& graph, const TrainingOptions& options) {
  return Unroller(graph, options.stage).training(options);
}

Program evaluation_program(const Graph& graph, const StageSlice& stage) { return Unroller(graph, stage).evaluation(); }

}  // namespace millrace::graph
