#include <fmt/format.h>

#include "millrace/model/families.h"

namespace millrace::model {

using graph::ValueId;

ValueId bert(graph::Builder& b, const job::Model& model, const TransformerShape& usual) {
  constexpr double kEpsilon = 1e-12;
  constexpr int kPlaces = 512, kSegments = 2;
  const TransformerShape shape = shape_of(model, usual);
  require_places(model, kPlaces);
  const double dropout = dropout_of(model, 0.1);
  const graph::Init spread{graph::Init::Kind::Normal, 0.02};
  const auto linear = [&](const std::string& name, ValueId x, int features) {
    return b.linear(name, x, {.out_features = features}, spread);
  };

  const std::string embeddings = "bert.embeddings.";
  const ValueId words =
      b.embedding(embeddings + "word_embeddings", b.tokens(), 0, job::vocabulary_of(model), shape.width, spread);
  const ValueId segments =
      b.embedding(embeddings + "token_type_embeddings", b.tokens(), 1, kSegments, shape.width, spread);
  ValueId x = b.add(embeddings + "sum", words, segments);
  x = b.positions(embeddings + "positions", x, embeddings + "position_embeddings.weight", kPlaces, spread);
  x = b.layer_norm(embeddings + "LayerNorm", x, kEpsilon);
  x = b.dropout(embeddings + "dropout", x, dropout);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("bert.encoder.layer.{}.", i);
    b.begin_block();
    ValueId y = linear(layer + "attention.self.qkv", x, 3 * shape.width);
    y = b.attention(layer + "attention.self", y, b.tokens(), {shape.heads, false, dropout});
    y = linear(layer + "attention.output.dense", y, shape.width);
    y = b.dropout(layer + "attention.output.dropout", y, dropout);
    x = b.layer_norm(layer + "attention.output.LayerNorm", b.add(layer + "attention.residual", y, x), kEpsilon);
    y = b.gelu(layer + "intermediate.gelu", linear(layer + "intermediate.dense", x, shape.mlp), false);
    y = linear(layer + "output.dense", y, shape.width);
    y = b.dropout(layer + "output.dropout", y, dropout);
    x = b.layer_norm(layer + "output.LayerNorm", b.add(layer + "residual", y, x), kEpsilon);
  }
  b.begin_head();
  if (model.head == job::Head::Span) {
    return b.span_logits("span", linear("qa_outputs", x, 2), b.tokens());
  }
  x = b.select_token("bert.pooler.first", x, 0);
  x = b.tanh("bert.pooler.tanh", linear("bert.pooler.dense", x, shape.width));
  x = b.dropout("dropout", x, dropout);
  return linear("classifier", x, model.classes);
}

}  // namespace millrace::model
