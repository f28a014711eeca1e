// Writes a Graph operator by operator, inferring shapes and refusing what does not fit, by layer name.
#pragma once

#include <string>
#include <utility>

#include "millrace/graph/graph.h"

namespace millrace::graph {

class Builder {
 public:
  Builder(std::string model, int64_t batch, int64_t channels, int64_t height, int64_t width, DType dtype = DType::F32);

  // Over tokens instead of images.
  static Builder over_tokens(std::string model, int64_t batch, int64_t tokens, DType dtype = DType::F32) {
    return over_tokens(std::move(model), batch, 1, tokens, dtype);
  }
  // With several numbers for each token.
  static Builder over_tokens(std::string model, int64_t batch, int64_t planes, int64_t tokens, DType dtype);

  ValueId images() const { return graph_.features; }
  ValueId tokens() const { return graph_.features; }
  const Shape& shape(ValueId value) const { return graph_.values[value].shape; }

  // The model's repeated parts: what is written from here on belongs to the next of them, or to none any more.
  void begin_block();
  // The same for a layer that is counted but not computed again.
  void begin_layer();
  void end_blocks();
  // What is written from here on is made for the classes of one task.
  void begin_head();

  // Initialisation of `weight`; biases of conv and linear follow `bias`.
  ValueId conv(const std::string& name, ValueId x, const Conv2dAttrs& attrs, Init weight, Init bias = {});
  ValueId linear(const std::string& name, ValueId x, const LinearAttrs& attrs, Init weight, Init bias = {});
  // The same by a weight that published files keep with its axes exchanged.
  ValueId transposed_linear(const std::string& name, ValueId x, const LinearAttrs& attrs, Init weight);
  // The same by a weight that another layer made, without bias: both train it.
  ValueId tied_linear(const std::string& name, ValueId x, const std::string& weight_name);
  // The mean of the table's rows that the tokens of a sample name; tokens below zero are none.
  ValueId embedding_bag(const std::string& name, ValueId tokens, int64_t entries, int64_t width, Init weight);
  // The table's row that each token names.
  ValueId embedding(const std::string& name, ValueId tokens, int plane, int64_t entries, int64_t width, Init weight);
  // A learned row for each place, of which there may be more than the input has.
  ValueId positions(const std::string& name, ValueId x, const std::string& weight_name, int64_t places, Init weight);
  // The pixels of an image behind a learned token.
  ValueId image_tokens(const std::string& name, ValueId x, const std::string& weight_name, Init weight);
  ValueId select_token(const std::string& name, ValueId x, int index);
  // Each feature as logits over the tokens there are.
  ValueId span_logits(const std::string& name, ValueId x, ValueId tokens);
  ValueId layer_norm(const std::string& name, ValueId x, double epsilon);
  ValueId gelu(const std::string& name, ValueId x, bool tanh);
  ValueId tanh(const std::string& name, ValueId x);
  // Over queries, keys and values side by side; tokens (or kNone) say which keys there are.
  ValueId attention(const std::string& name, ValueId qkv, ValueId tokens, const AttentionAttrs& attrs);
  ValueId batch_norm(const std::string& name, ValueId x, double scale = 1.0);
  ValueId relu(const std::string& name, ValueId x);
  ValueId max_pool(const std::string& name, ValueId x, const Window& window);
  ValueId avg_pool(const std::string& name, ValueId x, const Window& window, bool count_pad = true);
  ValueId adaptive_avg_pool(const std::string& name, ValueId x, int out_h, int out_w);
  ValueId flatten(const std::string& name, ValueId x);
  ValueId dropout(const std::string& name, ValueId x, double probability);
  ValueId add(const std::string& name, ValueId a, ValueId b);
  // Over the last axis; a sample has as many labels as the logits have rows of it.
  void softmax_cross_entropy(const std::string& name, ValueId logits, double label_smoothing);

  Graph finish() &&;

 private:
  Builder(std::string model, const Shape& features, const char* what, DType features_type, DType dtype);
  ValueId emit(const std::string& name, OpKind kind, const Attrs& attrs, std::vector<ValueId> inputs, Shape shape,
               std::vector<ParamId> params = {});
  ParamId param(const std::string& name, Shape shape, ParamRole role, Init init);
  Shape pooled(const std::string& name, ValueId x, const Window& window) const;
  void require_tokens(const std::string& name, ValueId tokens) const;
  void require_rank(const std::string& name, ValueId x, int rank) const;

  Graph graph_;
  int blocks_ = 0, layers_ = 0;
  bool in_block_ = false, in_head_ = false;
  int depth_ = 0;
};

}  // namespace millrace::graph
