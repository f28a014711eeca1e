#include <fmt/format.h>

#include <cmath>

#include "millrace/model/families.h"

namespace millrace::model {

using graph::ValueId;

ValueId gpt2(graph::Builder& b, const job::Model& model, const TransformerShape& usual) {
  constexpr double kEpsilon = 1e-5;
  constexpr int kPlaces = 1024;
  const TransformerShape shape = shape_of(model, usual);
  require_places(model, kPlaces);
  const double dropout = dropout_of(model, 0.1);
  const graph::Init spread{graph::Init::Kind::Normal, 0.02};
  // What is added to the residual stream starts smaller, by the number of additions.
  const graph::Init small{graph::Init::Kind::Normal, 0.02 / std::sqrt(2.0 * shape.layers)};
  const auto linear = [&](const std::string& name, ValueId x, int features, graph::Init init) {
    return b.transposed_linear(name, x, {.out_features = features}, init);
  };

  const std::string table = "transformer.wte";
  ValueId x = b.embedding(table, b.tokens(), 0, job::vocabulary_of(model), shape.width, spread);
  x = b.positions("transformer.wpe", x, "transformer.wpe.weight", kPlaces, spread);
  x = b.dropout("transformer.drop", x, dropout);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    b.begin_block();
    ValueId y = b.layer_norm(layer + "ln_1", x, kEpsilon);
    y = linear(layer + "attn.c_attn", y, 3 * shape.width, spread);
    y = b.attention(layer + "attn", y, graph::kNone, {shape.heads, true, dropout});
    y = linear(layer + "attn.c_proj", y, shape.width, small);
    y = b.dropout(layer + "attn.resid_dropout", y, dropout);
    x = b.add(layer + "attn.residual", x, y);
    y = b.layer_norm(layer + "ln_2", x, kEpsilon);
    y = b.gelu(layer + "mlp.act", linear(layer + "mlp.c_fc", y, shape.mlp, spread), true);
    y = linear(layer + "mlp.c_proj", y, shape.width, small);
    y = b.dropout(layer + "mlp.dropout", y, dropout);
    x = b.add(layer + "residual", x, y);
  }
  b.end_blocks();
  x = b.layer_norm("transformer.ln_f", x, kEpsilon);
  return b.tied_linear("lm_head", x, table + ".weight");
}

}  // namespace millrace::model
