#include "millrace/model/families.h"

namespace millrace::model {

graph::ValueId bag_of_tokens(graph::Builder& b, const job::Model& model) {
  const int width = model.width > 0 ? model.width : 64;
  const graph::Init spread{graph::Init::Kind::Normal, 0.1};
  const graph::ValueId mean = b.embedding_bag("embedding", b.tokens(), model.vocabulary, width, spread);
  b.begin_head();
  return b.linear("classifier", mean, {.out_features = model.classes}, torch_default(width), torch_default(width));
}

}  // namespace millrace::model
