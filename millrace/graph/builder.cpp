#include "millrace/graph/builder.h"

#include <utility>

#include "millrace/base/error.h"

namespace millrace::graph {

Builder::Builder(std::string model, int64_t batch, int64_t channels, int64_t height, int64_t width, DType dtype)
    : Builder(std::move(model), {batch, channels, height, width}, "images", dtype, dtype) {}

Builder Builder::over_tokens(std::string model, int64_t batch, int64_t planes, int64_t tokens, DType dtype) {
  const Shape shape = planes == 1 ? Shape{batch, tokens} : Shape{batch, planes, tokens};
  return {std::move(model), shape, "tokens", DType::I32, dtype};
}

Builder::Builder(std::string model, const Shape& features, const char* what, DType features_type, DType dtype) {
  graph_.name = std::move(model);
  graph_.dtype = dtype;
  for (int axis = 0; axis < features.rank(); ++axis) {
    if (features[axis] < 1) fail_input("{}: input {} has an extent below 1", graph_.name, features.str());
  }
  graph_.features = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back({what, features, features_type});
  graph_.labels = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back({"labels", {features[0]}, DType::I32});
}

ParamId Builder::param(const std::string& name, Shape shape, ParamRole role, Init init) {
  graph_.params.push_back({name, shape, role, init, depth_, in_head_});
  return static_cast<ParamId>(graph_.params.size()) - 1;
}

ValueId Builder::emit(const std::string& name, OpKind kind, const Attrs& attrs, std::vector<ValueId> inputs,
                      Shape shape, std::vector<ParamId> params) {
  const auto output = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back({name, shape, graph_.dtype});
  const int block = in_block_ ? blocks_ - 1 : kNone;
  graph_.ops.push_back({name, kind, attrs, std::move(inputs), output, std::move(params), block, depth_});
  return output;
}

void Builder::begin_block() {
  in_block_ = true;
  ++blocks_;
  depth_ = ++layers_;
}

void Builder::begin_layer() { depth_ = ++layers_; }

void Builder::end_blocks() {
  in_block_ = false;
  depth_ = layers_ + 1;
}

void Builder::begin_head() {
  end_blocks();
  in_head_ = true;
}

void Builder::require_rank(const std::string& name, ValueId x, int rank) const {
  if (shape(x).rank() != rank) {
    fail_input("{}: layer {} takes a tensor of {} axes, its input is {}", graph_.name, name, rank, shape(x).str());
  }
}

ValueId Builder::conv(const std::string& name, ValueId x, const Conv2dAttrs& attrs, Init weight, Init bias) {
  require_rank(name, x, 4);
  const Shape& in = shape(x);
  const Window& w = attrs.window;
  if (attrs.groups < 1 || in[1] % attrs.groups != 0 || attrs.out_channels % attrs.groups != 0) {
    fail_input("{}: layer {}: {} groups divide neither or only one of {} input and {} output channels", graph_.name,
               name, attrs.groups, in[1], attrs.out_channels);
  }
  const int64_t out_h = w.out_h(in[2]), out_w = w.out_w(in[3]);
  if (out_h < 1 || out_w < 1) {
    fail_input("{}: layer {}: a {}x{} kernel does not fit its {}x{} input (padding {}); use a larger image",
               graph_.name, name, w.kernel_h, w.kernel_w, in[2], in[3], w.pad_h);
  }
  std::vector<ParamId> params{param(
      name + ".weight", {attrs.out_channels, in[1] / attrs.groups, w.kernel_h, w.kernel_w}, ParamRole::Weight, weight)};
  if (attrs.bias) params.push_back(param(name + ".bias", {attrs.out_channels}, ParamRole::Bias, bias));
  return emit(name, OpKind::Conv2d, attrs, {x}, {in[0], attrs.out_channels, out_h, out_w}, std::move(params));
}

ValueId Builder::linear(const std::string& name, ValueId x, const LinearAttrs& attrs, Init weight, Init bias) {
  const Shape& in = shape(x);
  if (in.rank() != 3) require_rank(name, x, 2);
  std::vector<ParamId> params{param(name + ".weight", {attrs.out_features, in.width()}, ParamRole::Weight, weight)};
  if (attrs.bias) params.push_back(param(name + ".bias", {attrs.out_features}, ParamRole::Bias, bias));
  const Shape out = in.rank() == 3 ? Shape{in[0], in[1], attrs.out_features} : Shape{in[0], attrs.out_features};
  return emit(name, OpKind::Linear, attrs, {x}, out, std::move(params));
}

ValueId Builder::transposed_linear(const std::string& name, ValueId x, const LinearAttrs& attrs, Init weight) {
  const ValueId y = linear(name, x, attrs, weight);
  graph_.params[graph_.ops.back().params[0]].stored_transposed = true;
  return y;
}

ValueId Builder::tied_linear(const std::string& name, ValueId x, const std::string& weight_name) {
  for (ParamId id = 0; id < static_cast<ParamId>(graph_.params.size()); ++id) {
    const Param& weight = graph_.params[id];
    if (weight.name != weight_name) continue;
    Shape out = shape(x);
    if (weight.shape.rank() != 2 || weight.shape[1] != out.width()) {
      fail_input("{}: layer {} takes {} features, {} is {}", graph_.name, name, out.width(), weight_name,
                 weight.shape.str());
    }
    const auto features = static_cast<int>(weight.shape[0]);
    out = out.rank() == 3 ? Shape{out[0], out[1], features} : Shape{out[0], features};
    return emit(name, OpKind::Linear, LinearAttrs{.out_features = features, .bias = false}, {x}, out, {id});
  }
  fail_input("{}: layer {} shares a weight {}, which no layer before it has", graph_.name, name, weight_name);
}

void Builder::require_tokens(const std::string& name, ValueId tokens) const {
  if (graph_.values[tokens].dtype == DType::I32) return;
  fail_input("{}: layer {} takes tokens (i32), its input is {} {}", graph_.name, name,
             name_of(graph_.values[tokens].dtype), shape(tokens).str());
}

ValueId Builder::embedding(const std::string& name, ValueId tokens, int plane, int64_t entries, int64_t width,
                           Init weight) {
  require_tokens(name, tokens);
  const Shape& in = shape(tokens);
  const int64_t planes = in.rank() == 3 ? in[1] : 1;
  if (plane < 0 || plane >= planes) {
    fail_input("{}: layer {}: plane {}, the tokens have planes 0 to {}", graph_.name, name, plane, planes - 1);
  }
  const ParamId table = param(name + ".weight", {entries, width}, ParamRole::Weight, weight);
  return emit(name, OpKind::Embedding, EmbeddingAttrs{plane}, {tokens}, {in[0], in.width(), width}, {table});
}

ValueId Builder::positions(const std::string& name, ValueId x, const std::string& weight_name, int64_t places,
                           Init weight) {
  require_rank(name, x, 3);
  const Shape& in = shape(x);
  if (in[1] > places) {
    fail_input("{}: layer {}: {} tokens, there are {} places; write fewer tokens", graph_.name, name, in[1], places);
  }
  const ParamId table = param(weight_name, {places, in[2]}, ParamRole::Weight, weight);
  return emit(name, OpKind::Positions, {}, {x}, in, {table});
}

ValueId Builder::image_tokens(const std::string& name, ValueId x, const std::string& weight_name, Init weight) {
  require_rank(name, x, 4);
  const Shape& in = shape(x);
  const ParamId token = param(weight_name, {in[1]}, ParamRole::Weight, weight);
  return emit(name, OpKind::ImageTokens, {}, {x}, {in[0], 1 + in[2] * in[3], in[1]}, {token});
}

ValueId Builder::select_token(const std::string& name, ValueId x, int index) {
  require_rank(name, x, 3);
  const Shape& in = shape(x);
  if (index < 0 || index >= in[1]) {
    fail_input("{}: layer {}: token {}, the input has tokens 0 to {}", graph_.name, name, index, in[1] - 1);
  }
  return emit(name, OpKind::SelectToken, SelectTokenAttrs{index}, {x}, {in[0], in[2]});
}

ValueId Builder::span_logits(const std::string& name, ValueId x, ValueId tokens) {
  require_rank(name, x, 3);
  require_tokens(name, tokens);
  const Shape& in = shape(x);
  return emit(name, OpKind::SpanLogits, {}, {x, tokens}, {in[0], in[2], in[1]});
}

ValueId Builder::layer_norm(const std::string& name, ValueId x, double epsilon) {
  const int64_t width = shape(x).width();
  const Init one{Init::Kind::Constant, 1.0};
  std::vector<ParamId> params{param(name + ".weight", {width}, ParamRole::NormScale, one),
                              param(name + ".bias", {width}, ParamRole::NormShift, {})};
  return emit(name, OpKind::LayerNorm, LayerNormAttrs{epsilon}, {x}, shape(x), std::move(params));
}

ValueId Builder::gelu(const std::string& name, ValueId x, bool tanh) {
  return emit(name, OpKind::Gelu, GeluAttrs{tanh}, {x}, shape(x));
}

ValueId Builder::tanh(const std::string& name, ValueId x) { return emit(name, OpKind::Tanh, {}, {x}, shape(x)); }

ValueId Builder::attention(const std::string& name, ValueId qkv, ValueId tokens, const AttentionAttrs& attrs) {
  require_rank(name, qkv, 3);
  const Shape& in = shape(qkv);
  if (attrs.heads < 1 || in[2] % (3 * attrs.heads) != 0) {
    fail_input("{}: layer {}: {} features are not queries, keys and values of {} heads", graph_.name, name, in[2],
               attrs.heads);
  }
  std::vector<ValueId> inputs{qkv};
  if (tokens != kNone) {
    require_tokens(name, tokens);
    inputs.push_back(tokens);
  }
  return emit(name, OpKind::Attention, attrs, std::move(inputs), {in[0], in[1], in[2] / 3});
}

ValueId Builder::embedding_bag(const std::string& name, ValueId tokens, int64_t entries, int64_t width, Init weight) {
  require_rank(name, tokens, 2);
  require_tokens(name, tokens);
  const ParamId table = param(name + ".weight", {entries, width}, ParamRole::Weight, weight);
  return emit(name, OpKind::EmbeddingBag, {}, {tokens}, {shape(tokens)[0], width}, {table});
}

ValueId Builder::batch_norm(const std::string& name, ValueId x, double scale) {
  require_rank(name, x, 4);
  const Shape in = shape(x);
  const Init one{Init::Kind::Constant, 1.0}, zero{};
  std::vector<ParamId> params{
      param(name + ".weight", {in[1]}, ParamRole::NormScale, {Init::Kind::Constant, scale}),
      param(name + ".bias", {in[1]}, ParamRole::NormShift, zero),
      param(name + ".running_mean", {in[1]}, ParamRole::RunningMean, zero),
      param(name + ".running_var", {in[1]}, ParamRole::RunningVariance, one),
  };
  return emit(name, OpKind::BatchNorm, BatchNormAttrs{}, {x}, in, std::move(params));
}

ValueId Builder::relu(const std::string& name, ValueId x) { return emit(name, OpKind::Relu, {}, {x}, shape(x)); }

Shape Builder::pooled(const std::string& name, ValueId x, const Window& window) const {
  require_rank(name, x, 4);
  const Shape& in = shape(x);
  const int64_t out_h = window.out_h(in[2]), out_w = window.out_w(in[3]);
  if (out_h < 1 || out_w < 1) {
    fail_input("{}: layer {}: a {}x{} window does not fit its {}x{} input; use a larger image", graph_.name, name,
               window.kernel_h, window.kernel_w, in[2], in[3]);
  }
  return {in[0], in[1], out_h, out_w};
}

ValueId Builder::max_pool(const std::string& name, ValueId x, const Window& window) {
  const Shape out = pooled(name, x, window);
  // The argmax is kept as one byte per output.
  if (window.kernel_h * window.kernel_w > 255) {
    fail_input("{}: layer {}: a {}x{} pooling window has over 255 places", graph_.name, name, window.kernel_h,
               window.kernel_w);
  }
  return emit(name, OpKind::MaxPool, PoolAttrs{window, true}, {x}, out);
}

ValueId Builder::avg_pool(const std::string& name, ValueId x, const Window& window, bool count_pad) {
  const Shape out = pooled(name, x, window);
  return emit(name, OpKind::AvgPool, PoolAttrs{window, count_pad}, {x}, out);
}

ValueId Builder::adaptive_avg_pool(const std::string& name, ValueId x, int out_h, int out_w) {
  require_rank(name, x, 4);
  const Shape& in = shape(x);
  if (in[2] == out_h && in[3] == out_w) return x;
  return emit(name, OpKind::AdaptiveAvgPool, AdaptivePoolAttrs{out_h, out_w}, {x}, {in[0], in[1], out_h, out_w});
}

ValueId Builder::flatten(const std::string& name, ValueId x) {
  const Shape& in = shape(x);
  return emit(name, OpKind::Flatten, {}, {x}, {in[0], in.elements() / in[0]});
}

ValueId Builder::dropout(const std::string& name, ValueId x, double probability) {
  if (probability == 0.0) return x;
  return emit(name, OpKind::Dropout, DropoutAttrs{probability}, {x}, shape(x));
}

ValueId Builder::add(const std::string& name, ValueId a, ValueId b) {
  if (!(shape(a) == shape(b))) {
    fail_input("{}: layer {} adds {} and {}", graph_.name, name, shape(a).str(), shape(b).str());
  }
  return emit(name, OpKind::Add, {}, {a, b}, shape(a));
}

void Builder::softmax_cross_entropy(const std::string& name, ValueId logits, double label_smoothing) {
  const Shape& rows = shape(logits);
  if (rows.rank() != 3) require_rank(name, logits, 2);
  graph_.values[graph_.labels].shape = rows.rank() == 3 ? Shape{rows[0], rows[1]} : Shape{rows[0]};
  graph_.logits = logits;
  emit(name, OpKind::SoftmaxCrossEntropy, LossAttrs{label_smoothing}, {logits, graph_.labels}, {1});
}

Graph Builder::finish() && { return std::move(graph_); }

}  // namespace millrace::graph
