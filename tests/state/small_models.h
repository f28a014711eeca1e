// One-layer models of each family that Hugging Face publishes, small enough to write their files down by hand.
#pragma once

#include <map>
#include <string>

#include "millrace/graph/graph.h"
#include "millrace/model/model.h"
#include "millrace/state/state.h"

namespace millrace::state {

inline graph::Param named_param(const std::string& name, const Shape& shape, bool stored_transposed = false) {
  graph::Param param;
  param.name = name;
  param.shape = shape;
  param.stored_transposed = stored_transposed;
  return param;
}

inline job::Model small_model(const std::string& name, int layers) {
  job::Model model{.name = name};
  model.width = 4;
  model.layers = layers;
  model.heads = 2;
  model.mlp = 6;
  return model;
}

// Images of 8x8 in patches of 4: a grid of 2x2.
inline graph::Graph small_vit(int classes = 3, int image_size = 8, int layers = 1) {
  job::Model model = small_model("vit_s_16", layers);
  model.classes = classes;
  model.image_size = image_size;
  model.patch = 4;
  return model::build(model, 1, 0);
}

inline graph::Graph small_bert(int classes = 3, int vocabulary = 7, int layers = 1,
                               job::Head head = job::Head::Classes) {
  job::Model model = small_model("bert_base", layers);
  model.classes = classes;
  model.vocabulary = vocabulary;
  model.tokens = 5;
  model.head = head;
  return model::build(model, 1, 0);
}

// With the head that finds answers: no pooler.
inline graph::Graph small_answering_bert() { return small_bert(3, 7, 1, job::Head::Span); }

inline graph::Graph small_gpt2(int layers = 1, int vocabulary = 7) {
  job::Model model = small_model("gpt2", layers);
  model.vocabulary = vocabulary;
  model.tokens = 5;
  return model::build(model, 1, 0);
}

// Every value of a model is another number.
inline std::map<std::string, Tensor> numbered_params(const graph::Graph& graph) {
  std::map<std::string, Tensor> params;
  float next = 1;
  for (const graph::Param& param : graph.params) {
    Tensor& tensor = params[param.name];
    tensor.shape = param.shape;
    for (int64_t i = 0; i < param.shape.elements(); ++i) tensor.data.push_back(next++);
  }
  return params;
}

inline State numbered_state(const graph::Graph& graph) {
  State state;
  state.params = numbered_params(graph);
  return state;
}

}  // namespace millrace::state
