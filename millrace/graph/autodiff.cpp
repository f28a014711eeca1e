// Unrolls a graph into a Program: forward in order, then backward in reverse, input gradient before weight
// gradient, each update as early as it is safe.
#include <algorithm>
#include <cassert>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/graph/program.h"

namespace millrace::graph {
namespace {

bool has_relu(const Op& op) {
  if (const auto* conv = std::get_if<Conv2dAttrs>(&op.attrs)) return conv->relu;
  if (const auto* linear = std::get_if<LinearAttrs>(&op.attrs)) return linear->relu;
  return false;
}

class Unroller {
 public:
  Unroller(const Graph& graph, const StageSlice& stage)
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

  Program evaluation() {
    for (const Op& op : ops_) forward(op, /*training=*/false);
    find_outputs();
    program_.first_backward = program_.first_update = program_.first_check = program_.first_step =
        program_.nodes.size();
    return std::move(program_);
  }

  Program training(const TrainingOptions& options) {
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

 private:
  // Of a parameter's weight: normalisation is not worth the loss of digits.
  DType weight_type(const Param& param) const {
    const bool is_factor = param.role == ParamRole::Weight || param.role == ParamRole::Bias;
    return is_factor ? graph_.dtype : wide(graph_.dtype);
  }

  // What no node reads but the state has: all digits of a weight that is computed with in sixteen bits, and the
  // optimizer's slots of one that may learn again.
  void keep_state_of_frozen() {
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

  void append_updates() {
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

  // Which parameters are read by several operators, of whatever stages.
  void find_shared() {
    readers_of_param_.assign(graph_.params.size(), 0);
    first_reader_.assign(graph_.params.size(), kNone);
    summed_.assign(graph_.params.size(), kNone);
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      for (ParamId param : graph_.ops[op].params) {
        if (readers_of_param_[param]++ == 0) first_reader_[param] = op;
      }
    }
  }
  // Of the operators of this stage, the first: backward comes to it last.
  OpId first_reader_here(ParamId param) const {
    for (const Op& op : ops_) {
      if (std::find(op.params.begin(), op.params.end(), param) != op.params.end()) return id_of(op);
    }
    return kNone;
  }

  // The block's forward once more, into buffers of its own: those of the first time need not be kept.
  void remake(int block) {
    for (const Op& op : ops_) {
      if (op.block != block) continue;
      const size_t first = program_.nodes.size();
      forward(op, /*training=*/true);
      for (size_t i = first; i < program_.nodes.size(); ++i) remade_.push_back(i);
    }
  }

  // Of what was made once more, the nodes whose results nobody reads: the end of a block is kept as the next one's
  // beginning.
  void drop_unread() {
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

  // A buffer for a value that this stage reads but does not make.
  void bring_in(ValueId value) {
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

  void find_outputs() {
    for (const StageEdge& edge : stage_edges(graph_, stage_.first)) {
      if (edge.from != stage_.index) continue;
      for (ValueId value : edge.values) program_.outputs.push_back({value, edge.to, value_buffer_[value]});
    }
  }

  // What arrives and what leaves are different buffers, or one could be overwritten while it is still on its way.
  void check_crossings() const {
    for (const Crossing& input : program_.inputs) {
      for (const Crossing& output : program_.outputs) {
        if (input.buffer != output.buffer && (input.gradient == kNone || input.gradient != output.gradient)) continue;
        fail_input("{}: stage {} cannot begin with {}: it would only pass {} on; begin it elsewhere", graph_.name,
                   stage_.index, ops_.front().name, graph_.values[input.value].name);
      }
    }
  }

  BufferId add_buffer(Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  BufferId buffer_of_value(ValueId value, BufferRole role) {
    const Value& v = graph_.values[value];
    return add_buffer({v.name, v.shape, v.dtype, role});
  }
  BufferId saved(const Op& op, const char* what, Shape shape, DType dtype) {
    return add_buffer({op.name + "." + what, shape, dtype, BufferRole::Activation});
  }
  BufferId gradient_like(BufferId buffer) {
    Buffer gradient = program_.buffers[buffer];
    gradient.name = "d " + gradient.name;
    gradient.role = BufferRole::Gradient;
    return add_buffer(std::move(gradient));
  }
  OpId id_of(const Op& op) const { return stage_.begin() + static_cast<OpId>(&op - ops_.data()); }
  void emit(const Op& op, OpKind kind, Pass pass, std::vector<BufferId> reads, std::vector<BufferId> writes,
            std::vector<InPlace> in_place = {}) {
    program_.nodes.push_back(
        {kind, pass, id_of(op), op.attrs, op.name, std::move(reads), std::move(writes), std::move(in_place)});
  }

  void forward(const Op& op, bool training) {
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
        writes.push_back(
            op_saved(op) = saved(op, "saved", {2, graph_.values[graph_.labels].shape.elements()}, wide(graph_.dtype)));
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

  // Whether a convolution also sums its outputs, for the batch norm of this stage that alone reads them.
  bool makes_sums(const Op& op) const {
    if (!options_.style.sums_in_conv || graph_.dtype != DType::F16 || op.kind != OpKind::Conv2d) return false;
    const auto& conv = std::get<Conv2dAttrs>(op.attrs);
    if (conv.bias || conv.relu || readers(op.output) != 1) return false;
    return std::any_of(ops_.begin(), ops_.end(), [&](const Op& reader) {
      return reader.kind == OpKind::BatchNorm && reader.inputs[0] == op.output;
    });
  }

  // A value needs a gradient if a trainable parameter stands before it.
  void find_differentiable() {
    differentiable_.assign(graph_.values.size(), false);
    for (const Op& op : graph_.ops) {
      bool needed = false;
      for (ParamId param : op.params) needed |= graph_.params[param].trainable();
      for (ValueId input : op.inputs) needed |= differentiable_[input];
      differentiable_[op.output] = needed;
    }
  }

  // The gradient of a value: the sum of what its readers contributed, summed in place.
  BufferId gradient_of(ValueId value, const Op& op) {
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

  // The same where the operator adds two parts by itself: the second is given back apart.
  std::pair<BufferId, BufferId> gradient_parts_of(ValueId value, const Op& op) {
    const std::vector<BufferId>& parts = parts_[value];
    if (parts.size() == 2 && parts[0] != parts[1]) return {parts[0], parts[1]};
    return {gradient_of(value, op), kNone};
  }

  BufferId input_gradient(const Op& op, int input) {
    const BufferId gradient = gradient_like(value_buffer_[op.inputs[input]]);
    parts_[op.inputs[input]].push_back(gradient);
    return gradient;
  }

  void backward(const Op& op) {
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

  // Whether a convolution's weight gradient waits until the backward pass of the batch norm before it has made the
  // convolution's input once more, so that it need not be kept.
  bool waits_for_norm(const Op& op) const {
    const OpId producer = graph_.producer(op.inputs[0]);
    if (!options_.style.remakes_norm || op.kind != OpKind::Conv2d || producer < stage_.begin()) return false;
    const auto* norm = std::get_if<BatchNormAttrs>(&graph_.ops[producer].attrs);
    return norm && !norm->residual && readers(op.inputs[0]) == 1;
  }
  int readers(ValueId value) const {
    int count = 0;
    for (const Op& op : graph_.ops) {
      for (ValueId input : op.inputs) count += input == value ? 1 : 0;
    }
    return count;
  }

  void emit_weight_grad(const Op& op, std::vector<BufferId> reads, const std::vector<ParamId>& params) {
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

  // The gradients of one parameter are added up once all are there.
  void emit_shared_step(const Op& op, ParamId param, BufferId gradient) {
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
  bool reads_elsewhere(ParamId param) const {
    int here = 0;
    for (const Op& op : ops_) here += static_cast<int>(std::count(op.params.begin(), op.params.end(), param));
    return here < readers_of_param_[param];
  }

  void emit_step(const Op& op, ParamId id, BufferId gradient, bool late) {
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

  BufferId& op_saved(const Op& op) {
    if (saved_.empty()) saved_.assign(graph_.ops.size(), kNone);
    return saved_[id_of(op)];
  }

  const Graph& graph_;
  const StageSlice stage_;
  const std::vector<Op> ops_;  // of the stage
  TrainingOptions options_;
  Program program_;
  std::vector<BufferId> value_buffer_;
  std::vector<BufferId> weight_;
  std::vector<BufferId> saved_;               // per operator: batch-norm statistics, argmax, sums
  std::vector<std::vector<BufferId>> parts_;  // per value: contributions to its gradient
  std::vector<bool> differentiable_;
  bool scales_ = false;  // gradients carry a loss scale
  std::vector<int> readers_of_param_;
  std::vector<OpId> first_reader_;  // of each parameter
  std::vector<BufferId> summed_;    // of parameters with several readers: the gradient that others are added to
  std::vector<Node> sums_;          // those additions
  std::vector<Node> deferred_;
  std::vector<size_t> remade_;   // nodes of blocks that were made once more
  const Op* waiting_ = nullptr;  // convolution whose weight gradient comes after the batch norm before it
  BufferId waiting_dy_ = kNone;
};

}  // namespace

Program training_program(const Graph& graph, const TrainingOptions& options) {
  return Unroller(graph, options.stage).training(options);
}

Program evaluation_program(const Graph& graph, const StageSlice& stage) { return Unroller(graph, stage).evaluation(); }

std::vector<Bucket> gradient_buckets(const Program& program, size_t bytes) {
  std::vector<Bucket> buckets;
  size_t filled = 0;
  for (size_t i = program.first_backward; i < program.first_update; ++i) {
    if (program.nodes[i].pass != Pass::WeightGrad) continue;
    for (BufferId id : program.nodes[i].writes) {
      const Buffer& buffer = program.buffers[id];
      if (!is_kept_gradient(buffer.role)) continue;
      if (buckets.empty() || filled >= bytes) {
        buckets.emplace_back();
        filled = 0;
      }
      buckets.back().gradients.push_back(id);
      buckets.back().end = i + 1;
      filled += static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype);
    }
  }
  if (!buckets.empty()) buckets.back().end = program.first_update;
  return buckets;
}

}  // namespace millrace::graph
