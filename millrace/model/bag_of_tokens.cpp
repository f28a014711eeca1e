#include "millrace/model/families.h"

namespace millrace::model {

graph::ValueId bag_of_tokens(graph::Builder& b, const job::Model& model) {
  const graph::Init spread{graph::Init::Kind::Normal, 0.1};
  const graph::ValueId mean = b.embedding_bag("embedding", b.tokens(), model.vocabulary, model.width, spread);
  return b.linear("classifier", mean, {.out_features = model.classes}, torch_default(model.width),
                  torch_default(model.width));
}

}  // namespace millrace::model
