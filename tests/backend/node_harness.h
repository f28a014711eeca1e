// Runs one node alone, on any backend: builds a Graph and a Program of that single node by hand (not through
// autodiff), fills what it reads with random numbers that make sense, poisons what it writes, runs it, and hands the
// results back plain. The same node on two backends:
//
//   expect_same_results(*reference, *cpu, {.kind = OpKind::Relu, .x = {3, 5, 7, 7}}, {.rows = 2}, /*seed=*/1, 1e-5);
//
// Buffers have the names of the table in program.h: "x", "w", "dy", ... Header only, as the test binaries are built
// from *_test.cpp alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/base/random.h"

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

// Plain row-major numbers by buffer name.
using Plain = std::map<std::string, std::vector<float>>;

// From uniform in [-1, 1) to labels: from -1 (not a sample) to the last class.
inline void to_labels(int64_t classes, std::vector<float>& values) {
  for (float& value : values) value = std::floor((value + 1) / 2 * static_cast<float>(classes + 1)) - 1;
}

// What the loss's forward saves of logits: the logarithm of each row's sum of exponentials.
inline void to_saved_of_logits(const Shape& shape, const std::vector<float>& logits, std::vector<float>& values) {
  const int64_t width = shape.width();
  for (int64_t row = 0; row < shape.rows(); ++row) {
    const std::span<const float> z(logits.data() + row * width, static_cast<size_t>(width));
    const double largest = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (float logit : z) sum += std::exp(logit - largest);
    values[row] = static_cast<float>(largest);
    values[shape.rows() + row] = static_cast<float>(1 / sum);
  }
}

// Some cell of each window that is not padding.
inline void to_argmax(const graph::Window& window, const Shape& x, const Shape& y, std::vector<float>& values) {
  const int cells = window.kernel_h * window.kernel_w;
  for (int64_t i = 0; i < y.elements(); ++i) {
    const int64_t oh = i / y[3] % y[2], ow = i % y[3];
    int cell = static_cast<int>((values[i] + 1) / 2 * static_cast<float>(cells));
    for (int tries = 0; tries < cells; ++tries, cell = (cell + 1) % cells) {
      const int64_t ih = oh * window.stride_h - window.pad_h + cell / window.kernel_w * window.dilation_h;
      const int64_t iw = ow * window.stride_w - window.pad_w + cell % window.kernel_w * window.dilation_w;
      if (ih >= 0 && ih < x[2] && iw >= 0 && iw < x[3]) break;
    }
    values[i] = static_cast<float>(cell);
  }
}

// What batch normalisation's forward saves of x: mean, then inverse standard deviation, of the first `rows` rows.
inline void to_saved(double epsilon, const Shape& shape, const std::vector<float>& x, int64_t rows,
                     std::vector<float>& values) {
  const int64_t channels = shape[1], area = shape.elements() / (shape[0] * channels);
  const auto count = static_cast<double>(std::max<int64_t>(rows * area, 1));
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t i = 0; i < area; ++i) {
        const double value = x[(n * channels + c) * area + i];
        sum += value;
        squares += value * value;
      }
    }
    const double mean = sum / count;
    values[c] = static_cast<float>(mean);
    values[channels + c] = static_cast<float>(1 / std::sqrt(squares / count - mean * mean + epsilon));
  }
}

// The same of layer normalisation, for each row.
inline void to_saved_of_rows(double epsilon, const Shape& shape, const std::vector<float>& x,
                             std::vector<float>& values) {
  const int64_t rows = shape.rows(), width = shape.width();
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < width; ++i) sum += x[row * width + i];
    const double mean = sum / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) squares += std::pow(x[row * width + i] - mean, 2);
    values[row] = static_cast<float>(mean);
    values[rows + row] = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + epsilon));
  }
}

inline const Shape& buffer_shape(const OneNode& one, const std::string& name) {
  for (const graph::Buffer& buffer : one.program.buffers) {
    if (buffer.name == name) return buffer.shape;
  }
  throw std::logic_error("the node has no buffer " + name);
}

constexpr float kLossScale = 1024, kClipFactor = 0.75f;
constexpr int kSkipped = 2;

// Before an update: with f16 some were left out. Without it there is no scale, and it must not matter.
inline void to_agreement(bool scales, std::vector<float>& values) {
  using namespace graph;
  for (float& value : values) value = std::abs(value);
  values[kScale] = scales ? kLossScale : 0;
  values[kInverseScale] = scales ? 1 / kLossScale : 0;
  values[kGoodSteps] = 0;
  values[kSkippedSteps] = scales ? kSkipped : 0;
  values[kClip] = kClipFactor;
  values[kOverflow] = 0;
}

// Numbers for what a node reads: uniform in [-1, 1), except where only some numbers make sense.
inline Plain random_plain(const OneNode& one, const StepContext& context, uint64_t seed) {
  const NodeView view = one.view();
  Plain plain;
  for (BufferId id : one.node().reads) {
    const graph::Buffer& buffer = one.buffer(id);
    const RandomStream random(seed, hash_name(buffer.name), 0);
    std::vector<float>& values = plain[buffer.name];
    values.resize(buffer.shape.elements());
    for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * uniform(random.at(i / 4)[i % 4]) - 1;
    if (buffer.name == "variance") {
      for (float& value : values) value += 1.5f;
    } else if (buffer.name == "labels") {
      to_labels(view.read(0).width(), values);
    } else if (buffer.name == "tokens") {
      // Others only look at the sign.
      const bool embeds = view.node.kind == OpKind::Embedding || view.node.kind == OpKind::EmbeddingBag;
      to_labels(embeds ? (view.node.pass == Pass::WeightGrad ? view.write(0) : view.read(0))[0] : 3, values);
    } else if (buffer.name == "saved" && view.node.kind == OpKind::SoftmaxCrossEntropy) {
      to_saved_of_logits(view.read(0), plain.at("logits"), values);
    } else if (buffer.name == "argmax") {
      to_argmax(view.attrs<graph::PoolAttrs>().window, view.write(0), buffer.shape, values);
    } else if (buffer.name == "saved" && view.node.kind == OpKind::LayerNorm) {
      to_saved_of_rows(view.attrs<graph::LayerNormAttrs>().epsilon, buffer_shape(one, "x"), plain.at("x"), values);
    } else if (buffer.name == "saved" && view.node.kind == OpKind::BatchNorm) {
      to_saved(view.attrs<graph::BatchNormAttrs>().epsilon, buffer_shape(one, "x"), plain.at("x"), context.rows,
               values);
    } else if (buffer.name == "master") {
      values = plain.at("w");
    } else if (buffer.name == "second_moment") {
      for (float& value : values) value = std::abs(value);
    } else if (buffer.name == "agreement") {
      to_agreement(one.graph.dtype == DType::F16 || view.node.kind == OpKind::SoftmaxCrossEntropy, values);
    }
  }
  return plain;
}

// One node bound to memory of a backend.
class NodeRun {
 public:
  NodeRun(Backend& backend, const OneNode& one) : backend_(backend), one_(one) {
    const graph::Node& node = one.node();
    const auto num_buffers = static_cast<BufferId>(one.program.buffers.size());
    for (BufferId id = 0; id < num_buffers; ++id) {
      home_.push_back(id);
      bytes_.push_back(std::max<size_t>(backend.bytes(one.graph, one.program, id), 1));
    }
    for (const graph::InPlace& place : node.in_place) {
      const BufferId write = node.writes[place.write], read = node.reads[place.read];
      home_[write] = read;
      bytes_[read] = std::max(bytes_[read], bytes_[write]);
    }
    for (BufferId id = 0; id < num_buffers; ++id) {
      memory_.push_back(home_[id] == id ? backend.allocate(bytes_[id]) : nullptr);
    }

    const Kernel kernel = backend.prepare(one.view());
    scratch_bytes_ = kernel.scratch_bytes;
    if (scratch_bytes_ > 0) scratch_ = backend.allocate(scratch_bytes_);
    Bindings bindings;
    for (BufferId id : node.reads) bindings.reads.push_back(memory(id));
    for (BufferId id : node.writes) bindings.writes.push_back(memory(id));
    bindings.scratch = scratch_;
    task_ = kernel.bind(bindings);
  }
  NodeRun(const NodeRun&) = delete;
  NodeRun& operator=(const NodeRun&) = delete;
  ~NodeRun() {
    for (size_t id = 0; id < memory_.size(); ++id) {
      if (memory_[id]) backend_.release(memory_[id], bytes_[id]);
    }
    if (scratch_) backend_.release(scratch_, scratch_bytes_);
  }

  // Fills what the node reads from `plain`, and poisons what it only writes: with NaN, with 255 where the type has
  // no NaN. Metrics are added to, so they start from 0.
  void fill(const Plain& plain) {
    for (BufferId id : one_.node().writes) {
      if (one_.reads(id) || home_[id] != id) continue;
      const graph::Buffer& buffer = one_.buffer(id);
      const bool has_nan = buffer.dtype != DType::I32 && buffer.dtype != DType::U8;
      const float poison = has_nan ? std::numeric_limits<float>::quiet_NaN() : 255;
      upload(id, std::vector<float>(buffer.shape.elements(), buffer.role == BufferRole::Metric ? 0 : poison));
    }
    for (BufferId id : one_.node().reads) upload(id, plain.at(one_.buffer(id).name));
  }

  void run(const StepContext& context) {
    backend_.begin(context);
    task_(context);
    backend_.wait();
  }

  Plain results() const {
    Plain plain;
    for (BufferId id : one_.results()) {
      std::vector<float>& values = plain[one_.buffer(id).name];
      values.resize(one_.buffer(id).shape.elements());
      backend_.download(one_.graph, one_.program, id, memory(id), values);
    }
    return plain;
  }

  // Where a buffer lies, in the memory and the layout of the backend.
  void* memory(BufferId id) const { return memory_[home_[id]]; }

 private:
  void upload(BufferId id, const std::vector<float>& plain) {
    backend_.upload(one_.graph, one_.program, id, plain, memory(id));
  }

  Backend& backend_;
  const OneNode& one_;
  std::vector<BufferId> home_;  // whose memory a buffer lies in: its own, or that of the read it takes the place of
  std::vector<size_t> bytes_;
  std::vector<void*> memory_;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  Task task_;
};

// Runs the node twice, so that what the first run left in scratch or in the kernel would show.
inline Plain run_node(Backend& backend, const OneNode& one, const StepContext& context, const Plain& plain) {
  NodeRun run(backend, one);
  for (int times = 0; times < 2; ++times) {
    run.fill(plain);
    run.run(context);
  }
  return run.results();
}

// Every result within `tolerance` of the buffer's largest magnitude. In forward passes the rows that are not samples
// only have to be finite; an argmax there may be anything.
inline void expect_close(const OneNode& one, const StepContext& context, const Plain& expected, const Plain& actual,
                         double tolerance) {
  const bool forward = one.node().pass == Pass::Forward || one.node().pass == Pass::Evaluate;
  for (BufferId id : one.results()) {
    const graph::Buffer& buffer = one.buffer(id);
    const std::vector<float>&want = expected.at(buffer.name), &got = actual.at(buffer.name);
    ASSERT_EQ(want.size(), got.size()) << buffer.name;
    const bool has_rows = buffer.name == "y" || buffer.name == "argmax";
    if (forward && has_rows) {
      ASSERT_GT(context.rows, 0) << "without rows nothing is compared: set StepContext::rows";
    }
    const size_t compared = forward && has_rows ? want.size() / buffer.shape[0] * context.rows : want.size();
    float largest = 0;
    for (size_t i = 0; i < compared; ++i) largest = std::max(largest, std::abs(want[i]));
    for (size_t i = 0; i < want.size(); ++i) {
      if (i < compared) {
        ASSERT_LE(std::abs(want[i] - got[i]), tolerance * largest)
            << buffer.name << " " << buffer.shape.str() << ", element " << i << ": expected " << want[i] << ", got "
            << got[i];
      } else {
        ASSERT_TRUE(std::isfinite(got[i])) << buffer.name << ", padding element " << i << ": " << got[i];
      }
    }
  }
}

// The same node and the same random numbers on two backends.
inline void expect_same_results(Backend& expected, Backend& actual, const NodeSpec& spec, const StepContext& context,
                                uint64_t seed, double tolerance) {
  const OneNode one = build(spec);
  const Plain plain = random_plain(one, context, seed);
  SCOPED_TRACE(std::string(graph::name_of(spec.kind)) + " " + graph::name_of(spec.pass) + " on x " + spec.x.str());
  expect_close(one, context, run_node(expected, one, context, plain), run_node(actual, one, context, plain), tolerance);
}

// Draws the same shapes in every run.
class ShapeDice {
 public:
  explicit ShapeDice(uint64_t seed) : random_(seed, 0, 0) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.at(next_++)[0] % static_cast<uint64_t>(high - low + 1));
  }
  int small(int low, int high) { return static_cast<int>(between(low, high)); }
  bool coin() { return between(0, 1) == 1; }
  int64_t pick(std::initializer_list<int64_t> from) {
    return from.begin()[between(0, static_cast<int64_t>(from.size()) - 1)];
  }

  // Batch 1 to 5; the rows that are samples may be fewer.
  Shape images(int64_t channels, int64_t smallest, int64_t largest) {
    return {between(1, 5), channels, between(smallest, largest), between(smallest, largest)};
  }
  StepContext context(int64_t batch) {
    const int64_t rows = coin() ? batch : between(1, batch);
    return {.seed = 3,
            .step = between(0, 100),
            .first_row = 4,
            .rows = rows,
            .inverse_samples = 1.0 / static_cast<double>(rows + 1),
            .learning_rate = 0.05f};
  }

 private:
  RandomStream random_;
  uint64_t next_ = 0;
};

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
