#include <fmt/format.h>

#include "millrace/base/error.h"
#include "millrace/model/families.h"

namespace millrace::model {

using graph::ValueId;
using graph::Window;

ValueId vit(graph::Builder& b, const job::Model& model, const TransformerShape& usual) {
  constexpr double kEpsilon = 1e-12;
  const TransformerShape shape = shape_of(model, usual);
  const double dropout = dropout_of(model, 0);
  const graph::Init spread{graph::Init::Kind::Normal, 0.02};
  if (model.image_size % model.patch != 0) {
    fail_input("model.image_size is {} and model.patch {}; write an image size that is a multiple of the patch",
               model.image_size, model.patch);
  }
  const auto linear = [&](const std::string& name, ValueId x, int features) {
    return b.linear(name, x, {.out_features = features}, spread);
  };

  const Window patches = Window::square(model.patch, model.patch);
  ValueId x = b.conv("vit.embeddings.patch_embeddings.projection", b.images(),
                     {.out_channels = shape.width, .window = patches}, spread);
  x = b.image_tokens("vit.embeddings.tokens", x, "vit.embeddings.cls_token", spread);
  x = b.positions("vit.embeddings.positions", x, "vit.embeddings.position_embeddings", b.shape(x)[1], spread);
  x = b.dropout("vit.embeddings.dropout", x, dropout);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("vit.encoder.layer.{}.", i);
    b.begin_block();
    ValueId y = b.layer_norm(layer + "layernorm_before", x, kEpsilon);
    y = linear(layer + "attention.attention.qkv", y, 3 * shape.width);
    y = b.attention(layer + "attention.attention", y, graph::kNone, {shape.heads, false, dropout});
    y = linear(layer + "attention.output.dense", y, shape.width);
    y = b.dropout(layer + "attention.output.dropout", y, dropout);
    x = b.add(layer + "attention.residual", x, y);
    y = b.layer_norm(layer + "layernorm_after", x, kEpsilon);
    y = b.gelu(layer + "intermediate.gelu", linear(layer + "intermediate.dense", y, shape.mlp), false);
    y = linear(layer + "output.dense", y, shape.width);
    y = b.dropout(layer + "output.dropout", y, dropout);
    x = b.add(layer + "residual", x, y);
  }
  b.end_blocks();
  x = b.select_token("vit.class", b.layer_norm("vit.layernorm", x, kEpsilon), 0);
  b.begin_head();
  return linear("classifier", x, model.classes);
}

}  // namespace millrace::model
