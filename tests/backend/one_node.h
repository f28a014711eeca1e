// A Graph and a Program of one node, built by hand and not through autodiff. Buffers have the names of the table in
// program.h: "x", "w", "dy", ...
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "millrace/backend/backend.h"

namespace millrace::backend::harness {

using graph::BufferId;
using graph::BufferRole;
using graph::OpKind;
using graph::Pass;

struct NodeSpec {
  OpKind kind{};
  Pass pass = Pass::Forward;
  Shape x = {};  // the operator's first input, batch first; of nodes of the optimizer, the parameter
  graph::Attrs attrs = {};
  // EmbeddingBag, Embedding: entries and their width, x is the tokens; Positions: places and width; SpanLogits: the
  // tokens, if they are not N x L.
  Shape table = {};
  bool masked = false;  // Attention: tokens say which keys there are
  DType dtype = DType::F32;
  bool saves_for_backward = true;                    // max pooling writes argmax, the loss its sums
  bool velocity = true;                              // SgdStep
  bool gradient_sum = false;                         // steps: dw is a sum over micro-batches; Accumulate: the part is
  bool loss_scale = false;                           // f16, steps and the loss's InputGrad: gradients carry a factor
  bool clips = false;                                // steps: there is a norm of all gradients
  bool next_version = false;                         // steps: the weight that is written is other memory, "new w"
  bool dy2 = false;                                  // BatchNorm InputGrad: the gradient comes in two parts
  bool output_again = false;                         // BatchNorm InputGrad: y is made once more
  bool sums = false;                                 // Conv2d Forward also sums its outputs
  graph::ParamRole role = graph::ParamRole::Weight;  // steps: of the parameter
  std::vector<graph::InPlace> in_place = {};         // taken up, not only permitted
  std::string name = "node";
};

// A Graph and a Program that hold one node.
struct OneNode {
  graph::Graph graph;
  graph::Program program;

  const graph::Node& node() const { return program.nodes[0]; }
  const graph::Buffer& buffer(BufferId id) const { return program.buffers[id]; }
  NodeView view() const { return {graph, program, node()}; }

  // The buffers a run leaves something in: what the node writes, and the gradient sum that a step clears.
  std::vector<BufferId> results() const {
    std::vector<BufferId> ids = node().writes;
    for (BufferId id : node().reads) {
      if (is_step(node().kind) && buffer(id).role == BufferRole::GradientSum) ids.push_back(id);
    }
    return ids;
  }
  bool reads(BufferId id) const {
    return std::find(node().reads.begin(), node().reads.end(), id) != node().reads.end();
  }
};

// The shape of what the operator makes of x.
inline Shape output_shape(const NodeSpec& spec) {
  const Shape& x = spec.x;
  if (const auto* conv = std::get_if<graph::Conv2dAttrs>(&spec.attrs)) {
    return {x[0], conv->out_channels, conv->window.out_h(x[2]), conv->window.out_w(x[3])};
  }
  if (const auto* linear = std::get_if<graph::LinearAttrs>(&spec.attrs)) {
    return x.rank() == 3 ? Shape{x[0], x[1], linear->out_features} : Shape{x[0], linear->out_features};
  }
  if (const auto* pool = std::get_if<graph::PoolAttrs>(&spec.attrs)) {
    return {x[0], x[1], pool->window.out_h(x[2]), pool->window.out_w(x[3])};
  }
  if (const auto* pool = std::get_if<graph::AdaptivePoolAttrs>(&spec.attrs)) {
    return {x[0], x[1], pool->out_h, pool->out_w};
  }
  if (spec.kind == OpKind::EmbeddingBag) return {x[0], spec.table[1]};
  if (spec.kind == OpKind::Embedding) return {x[0], x.width(), spec.table[1]};
  if (spec.kind == OpKind::ImageTokens) return {x[0], 1 + x[2] * x[3], x[1]};
  if (spec.kind == OpKind::SelectToken) return {x[0], x[2]};
  if (spec.kind == OpKind::SpanLogits) return {x[0], x[2], x[1]};
  if (spec.kind == OpKind::Attention) return {x[0], x[1], x[2] / 3};
  if (spec.kind == OpKind::Flatten) return {x[0], x.elements() / x[0]};
  return x;
}

// Follows the table in program.h.
class NodeBuilder {
 public:
  explicit NodeBuilder(const NodeSpec& spec) : spec_(spec), y_(output_shape(spec)) {
    one_.graph.name = "one node";
    one_.graph.dtype = spec.dtype;
    one_.graph.values = {{"x", spec.x, spec.dtype}, {"y", y_, spec.dtype}};
    one_.graph.features = 0;
    one_.graph.ops = {{spec.name, spec.kind, spec.attrs, {0}, 1, {}}};
    one_.program.nodes = {{spec.kind, spec.pass, 0, spec.attrs, spec.name, {}, {}, spec.in_place}};
    if (spec.pass != Pass::Update) return;
    clips_ = spec.clips || spec.kind == OpKind::SumSquares || spec.kind == OpKind::ClipNorm;
    own_param_ = clips_ ? 1 : 0;
    one_.graph.params.assign(clips_ ? 3 : 1, {"w", spec.x, spec.role, {}});
    one_.graph.ops[0].params = {own_param_};
  }

  OneNode build() {
    switch (spec_.kind) {
      case OpKind::Conv2d: {
        const auto& conv = std::get<graph::Conv2dAttrs>(spec_.attrs);
        weighted({conv.out_channels, spec_.x[1] / conv.groups, conv.window.kernel_h, conv.window.kernel_w}, conv.bias);
        break;
      }
      case OpKind::Linear: {
        const auto& linear = std::get<graph::LinearAttrs>(spec_.attrs);
        weighted({linear.out_features, spec_.x.width()}, linear.bias);
        break;
      }
      case OpKind::Positions:
      case OpKind::ImageTokens: {
        const Shape w = spec_.kind == OpKind::Positions ? spec_.table : Shape{spec_.x[1]};
        if (spec_.pass == Pass::WeightGrad) {
          reads("dy", y_, BufferRole::Gradient);
          writes("dw", w, BufferRole::WeightGradient);
        } else {
          value_to_value();
          if (!backward()) reads("w", w, BufferRole::Weight);
        }
        break;
      }
      case OpKind::LayerNorm: layer_norm(); break;
      case OpKind::Gelu:
        value_to_value();
        if (backward()) reads("x", spec_.x, BufferRole::Activation);
        break;
      case OpKind::Tanh:
        value_to_value();
        if (backward()) reads("y", y_, BufferRole::Activation);
        break;
      case OpKind::Attention: attention(); break;
      case OpKind::Embedding:
      case OpKind::EmbeddingBag:
        if (backward()) {
          reads("dy", y_, BufferRole::Gradient);
        } else {
          reads("w", spec_.table, BufferRole::Weight);
        }
        reads("tokens", spec_.x, BufferRole::Input, DType::I32);
        if (backward()) {
          writes("dw", spec_.table, BufferRole::WeightGradient);
        } else {
          writes("y", y_, BufferRole::Activation);
        }
        break;
      case OpKind::SpanLogits:
        value_to_value();
        reads("tokens", spec_.table.rank() > 0 ? spec_.table : Shape{spec_.x[0], spec_.x[1]}, BufferRole::Input,
              DType::I32);
        break;
      case OpKind::BatchNorm: batch_norm(); break;
      case OpKind::MaxPool:
        if (!backward()) {
          value_to_value();
          if (spec_.saves_for_backward) writes("argmax", y_, BufferRole::Activation, DType::U8);
        } else {
          reads("dy", y_, BufferRole::Gradient);
          reads("argmax", y_, BufferRole::Activation, DType::U8);
          writes("dx", spec_.x, BufferRole::Gradient);
        }
        break;
      case OpKind::Relu:
        value_to_value();
        if (backward()) reads("y", y_, BufferRole::Activation);
        break;
      case OpKind::AvgPool:
      case OpKind::AdaptiveAvgPool:
      case OpKind::Flatten:
      case OpKind::SelectToken:
      case OpKind::Dropout: value_to_value(); break;
      case OpKind::Add:
        reads("a", y_, BufferRole::Activation);
        reads("b", y_, BufferRole::Activation);
        writes("y", y_, BufferRole::Activation);
        break;
      case OpKind::SoftmaxCrossEntropy: loss(); break;
      case OpKind::Accumulate:
        updates("total", BufferRole::GradientSum);
        if (spec_.pass == Pass::Update) {
          updates("part", spec_.gradient_sum ? BufferRole::GradientSum : BufferRole::SharedGradient);
        } else {
          reads("part", spec_.x, BufferRole::WeightGradient, spec_.dtype, graph::ParamRole::Weight);
        }
        break;
      case OpKind::CheckFinite:
      case OpKind::SumSquares:
        gradient();
        one_.program.nodes[0].writes.push_back(agreement());
        break;
      case OpKind::SgdStep:
      case OpKind::AdamStep:
      case OpKind::LambStep: step(); break;
      case OpKind::ClipNorm:
      case OpKind::AdjustScale: one_.program.nodes[0].writes.push_back(agreement()); break;
    }
    return std::move(one_);
  }

 private:
  bool backward() const { return spec_.pass == Pass::InputGrad || spec_.pass == Pass::WeightGrad; }

  // One global parameter per name, but one for all that the optimizer has of it.
  BufferId add(const std::string& name, const Shape& shape, BufferRole role, DType dtype, graph::ParamRole param_role) {
    int param = graph::kNone;
    const bool has_param = role == BufferRole::Weight || role == BufferRole::Statistic ||
                           role == BufferRole::WeightGradient || is_kept_gradient(role) || is_optimizer_slot(role) ||
                           role == BufferRole::Master;
    if (has_param && own_param_ != graph::kNone) {
      param = own_param_;
    } else if (has_param) {
      param = static_cast<int>(one_.graph.params.size());
      one_.graph.params.push_back({name, shape, param_role, {}});
      one_.graph.ops[0].params.push_back(param);
    }
    one_.program.buffers.push_back({name, shape, dtype, role, param});
    return static_cast<BufferId>(one_.program.buffers.size()) - 1;
  }
  BufferId reads(const std::string& name, const Shape& shape, BufferRole role) {
    return reads(name, shape, role, spec_.dtype);
  }
  BufferId reads(const std::string& name, const Shape& shape, BufferRole role, DType dtype,
                 graph::ParamRole param_role = graph::ParamRole::Weight) {
    const BufferId id = add(name, shape, role, dtype, param_role);
    one_.program.nodes[0].reads.push_back(id);
    return id;
  }
  void writes(const std::string& name, const Shape& shape, BufferRole role) { writes(name, shape, role, spec_.dtype); }
  void writes(const std::string& name, const Shape& shape, BufferRole role, DType dtype,
              graph::ParamRole param_role = graph::ParamRole::Weight) {
    one_.program.nodes[0].writes.push_back(add(name, shape, role, dtype, param_role));
  }
  // Read and written in one place.
  void updates(const std::string& name, BufferRole role) { updates(name, role, wide(spec_.dtype)); }
  void updates(const std::string& name, BufferRole role, DType dtype) {
    one_.program.nodes[0].writes.push_back(reads(name, spec_.x, role, dtype, spec_.role));
  }
  BufferId agreement() {
    const int64_t squares = clips_ ? static_cast<int64_t>(one_.graph.params.size()) : 0;
    return one_.program.agreement = reads("agreement", {graph::kSquares + squares}, BufferRole::Agreement, DType::F32);
  }

  // Of the parameter that a step updates; those of normalisation are wide.
  DType weight_type() const {
    const bool is_factor = spec_.role == graph::ParamRole::Weight || spec_.role == graph::ParamRole::Bias;
    return is_factor ? spec_.dtype : wide(spec_.dtype);
  }
  void gradient() {
    if (spec_.gradient_sum) {
      reads("dw", spec_.x, BufferRole::GradientSum, wide(spec_.dtype), spec_.role);
    } else {
      reads("dw", spec_.x, BufferRole::WeightGradient, weight_type(), spec_.role);
    }
  }
  void step() {
    if (spec_.next_version) {
      reads("w", spec_.x, BufferRole::Weight, weight_type(), spec_.role);
      writes("new w", spec_.x, BufferRole::Weight, weight_type(), spec_.role);
    } else {
      updates("w", BufferRole::Weight, weight_type());
    }
    gradient();
    const bool adam = spec_.kind != OpKind::SgdStep;
    if (adam || spec_.velocity) updates("velocity", BufferRole::Velocity);
    if (adam) updates("second_moment", BufferRole::SecondMoment);
    if (is_half(spec_.dtype)) updates("master", BufferRole::Master);
    if (spec_.loss_scale || spec_.clips) agreement();
  }

  void value_to_value() {
    if (backward()) {
      reads("dy", y_, BufferRole::Gradient);
      writes("dx", spec_.x, BufferRole::Gradient);
    } else {
      reads("x", spec_.x, BufferRole::Activation);
      writes("y", y_, BufferRole::Activation);
    }
  }

  void weighted(const Shape& w, bool bias) {
    const Shape b{w[0]};
    if (spec_.pass == Pass::InputGrad) {
      reads("dy", y_, BufferRole::Gradient);
      reads("w", w, BufferRole::Weight);
      writes("dx", spec_.x, BufferRole::Gradient);
    } else if (spec_.pass == Pass::WeightGrad) {
      reads("x", spec_.x, BufferRole::Activation);
      reads("dy", y_, BufferRole::Gradient);
      writes("dw", w, BufferRole::WeightGradient);
      if (bias) writes("db", b, BufferRole::WeightGradient, spec_.dtype, graph::ParamRole::Bias);
    } else {
      reads("x", spec_.x, BufferRole::Activation);
      reads("w", w, BufferRole::Weight);
      if (bias) reads("b", b, BufferRole::Weight, spec_.dtype, graph::ParamRole::Bias);
      writes("y", y_, BufferRole::Activation);
      if (spec_.sums) writes("sums", {2, y_[1], 1, 1}, BufferRole::Activation, wide(spec_.dtype));
    }
  }

  void layer_norm() {
    const Shape width{spec_.x.width()}, saved{2, spec_.x.rows()};
    const DType dtype = wide(spec_.dtype);
    if (backward()) reads("dy", y_, BufferRole::Gradient);
    reads("x", spec_.x, BufferRole::Activation);
    if (spec_.pass != Pass::WeightGrad) {
      reads("scale", width, BufferRole::Weight, dtype, graph::ParamRole::NormScale);
    }
    if (!backward()) reads("shift", width, BufferRole::Weight, dtype, graph::ParamRole::NormShift);
    if (backward()) reads("saved", saved, BufferRole::Activation, dtype);
    if (spec_.pass == Pass::InputGrad) {
      writes("dx", spec_.x, BufferRole::Gradient);
    } else if (spec_.pass == Pass::WeightGrad) {
      writes("dscale", width, BufferRole::WeightGradient, dtype, graph::ParamRole::NormScale);
      writes("dshift", width, BufferRole::WeightGradient, dtype, graph::ParamRole::NormShift);
    } else {
      writes("y", y_, BufferRole::Activation);
      if (spec_.pass == Pass::Forward) writes("saved", saved, BufferRole::Activation, dtype);
    }
  }

  void attention() {
    const Shape& qkv = spec_.x;
    const Shape saved{qkv[0], std::get<graph::AttentionAttrs>(spec_.attrs).heads, qkv[1]}, tokens{qkv[0], qkv[1]};
    if (backward()) reads("dy", y_, BufferRole::Gradient);
    reads("qkv", qkv, BufferRole::Activation);
    if (backward()) {
      reads("y", y_, BufferRole::Activation);
      reads("saved", saved, BufferRole::Activation, wide(spec_.dtype));
    }
    if (spec_.masked) reads("tokens", tokens, BufferRole::Input, DType::I32);
    if (backward()) {
      writes("dqkv", qkv, BufferRole::Gradient);
    } else {
      writes("y", y_, BufferRole::Activation);
      if (spec_.pass == Pass::Forward) writes("saved", saved, BufferRole::Activation, wide(spec_.dtype));
    }
  }

  void batch_norm() {
    const auto& attrs = std::get<graph::BatchNormAttrs>(spec_.attrs);
    const Shape per_channel{spec_.x[1]}, pair{2, spec_.x[1]};
    const DType dtype = wide(spec_.dtype);
    if (spec_.pass == Pass::WeightGrad) {
      reads("dsums", pair, BufferRole::Gradient, dtype);
      writes("dscale", per_channel, BufferRole::WeightGradient, dtype, graph::ParamRole::NormScale);
      writes("dshift", per_channel, BufferRole::WeightGradient, dtype, graph::ParamRole::NormShift);
      return;
    }
    if (spec_.pass == Pass::InputGrad) reads("dy", y_, BufferRole::Gradient);
    reads("x", spec_.x, BufferRole::Activation);
    reads("scale", per_channel, BufferRole::Weight, dtype, graph::ParamRole::NormScale);
    reads("shift", per_channel, BufferRole::Weight, dtype, graph::ParamRole::NormShift);
    if (spec_.pass == Pass::InputGrad) {
      reads("saved", pair, BufferRole::Activation, dtype);
      if (attrs.residual && attrs.relu) reads("y", y_, BufferRole::Activation);
      if (spec_.dy2) reads("dy2", y_, BufferRole::Gradient);
      writes("dx", spec_.x, BufferRole::Gradient);
      writes("dsums", pair, BufferRole::Gradient, dtype);
      if (attrs.residual) writes("dresidual", y_, BufferRole::Gradient);
      if (spec_.output_again) writes("y again", y_, BufferRole::Activation);
      return;
    }
    const BufferId mean = reads("mean", per_channel, BufferRole::Statistic, dtype, graph::ParamRole::RunningMean);
    const BufferId variance =
        reads("variance", per_channel, BufferRole::Statistic, dtype, graph::ParamRole::RunningVariance);
    if (attrs.residual) reads("residual", y_, BufferRole::Activation);
    writes("y", y_, BufferRole::Activation);
    if (spec_.pass == Pass::Evaluate) return;
    writes("saved", pair, BufferRole::Activation, dtype);
    one_.program.nodes[0].writes.push_back(mean);
    one_.program.nodes[0].writes.push_back(variance);
  }

  void loss() {
    Shape labels;
    for (int axis = 0; axis + 1 < spec_.x.rank(); ++axis) labels.append(spec_.x[axis]);
    const Shape saved{2, labels.elements()};
    reads("logits", spec_.x, BufferRole::Activation);
    one_.program.labels = reads("labels", labels, BufferRole::Input, DType::I32);
    if (spec_.pass == Pass::InputGrad) {
      reads("saved", saved, BufferRole::Activation, wide(spec_.dtype));
      if (spec_.loss_scale) agreement();
      writes("dlogits", spec_.x, BufferRole::Gradient);
      return;
    }
    writes("metrics", {graph::kNumMetrics}, BufferRole::Metric, DType::F64);
    one_.program.metrics = one_.node().writes[0];
    if (spec_.saves_for_backward) writes("saved", saved, BufferRole::Activation, wide(spec_.dtype));
  }

  const NodeSpec& spec_;
  Shape y_;
  OneNode one_;
  bool clips_ = false;
  int own_param_ = graph::kNone;  // of an update: the only one, or the middle one of those that are clipped together
};

inline OneNode build(const NodeSpec& spec) { return NodeBuilder(spec).build(); }

// Whether a convolution reads the network's input, which has a layout of its own, or a value of the network.
enum class Reads { Value, Images };

// A node as autodiff would emit it.
inline OneNode build_as_emitted(const NodeSpec& spec, Reads reads = Reads::Value) {
  OneNode one = build(spec);
  one.graph.features = reads == Reads::Images ? 0 : graph::kNone;
  if (reads == Reads::Images) {
    for (graph::Buffer& buffer : one.program.buffers) {
      if (buffer.name != "x") continue;
      buffer.role = BufferRole::Input;
      one.program.features = static_cast<BufferId>(&buffer - one.program.buffers.data());
    }
  }
  // Without a ReLU the gradient of the residual is dy itself: autodiff shares the buffer and no node writes it.
  if (const auto* norm = std::get_if<graph::BatchNormAttrs>(&spec.attrs);
      norm && spec.pass == Pass::InputGrad && norm->residual && !norm->relu) {
    one.program.nodes[0].writes.pop_back();
  }
  return one;
}

}  // namespace millrace::backend::harness
