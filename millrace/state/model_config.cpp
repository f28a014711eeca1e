#include "millrace/state/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "millrace/state/published_names.h"

namespace millrace::state {
namespace {

using graph::Graph;
using nlohmann::ordered_json;

bool has_param(const Graph& graph, const std::string& name) {
  return std::any_of(graph.params.begin(), graph.params.end(), [&](const auto& param) { return param.name == name; });
}

const Shape& shape_of(const Graph& graph, const std::string& name) {
  const auto found =
      std::find_if(graph.params.begin(), graph.params.end(), [&](const auto& param) { return param.name == name; });
  assert(found != graph.params.end());
  return found->shape;
}

// The attributes of the first operator that has such; as by default where none has.
template <typename Attrs>
Attrs first(const Graph& graph) {
  for (const graph::Op& op : graph.ops) {
    if (const auto* attrs = std::get_if<Attrs>(&op.attrs)) return *attrs;
  }
  return {};
}

int64_t num_attentions(const Graph& graph) {
  return std::count_if(graph.ops.begin(), graph.ops.end(),
                       [](const graph::Op& op) { return op.kind == graph::OpKind::Attention; });
}

// A model without dropout has no such operator.
double dropout_of(const Graph& graph) {
  const bool drops = std::any_of(graph.ops.begin(), graph.ops.end(),
                                 [](const graph::Op& op) { return op.kind == graph::OpKind::Dropout; });
  return drops ? first<graph::DropoutAttrs>(graph).probability : 0;
}

const char* activation_of(const Graph& graph) { return first<graph::GeluAttrs>(graph).tanh ? "gelu_new" : "gelu"; }

// How many classes there are is said by naming them.
void add_labels(ordered_json& config, int64_t classes) {
  ordered_json names = ordered_json::object(), numbers = ordered_json::object();
  for (int64_t i = 0; i < classes; ++i) {
    names[std::to_string(i)] = fmt::format("LABEL_{}", i);
    numbers[fmt::format("LABEL_{}", i)] = i;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
}

// What ViT and BERT say in the same words.
void add_encoder(ordered_json& config, const Graph& graph, int64_t width, const std::string& blocks) {
  config["hidden_size"] = width;
  config["num_hidden_layers"] = num_attentions(graph);
  config["num_attention_heads"] = first<graph::AttentionAttrs>(graph).heads;
  config["intermediate_size"] = shape_of(graph, blocks + "0.intermediate.dense.weight")[0];
  config["hidden_act"] = activation_of(graph);
  config["hidden_dropout_prob"] = dropout_of(graph);
  config["attention_probs_dropout_prob"] = first<graph::AttentionAttrs>(graph).dropout;
  config["layer_norm_eps"] = first<graph::LayerNormAttrs>(graph).epsilon;
}

ordered_json vit_config(const Graph& graph, const Family& family) {
  const Shape& projection = shape_of(graph, "vit.embeddings.patch_embeddings.projection.weight");
  ordered_json config{{"architectures", {"ViTForImageClassification"}}, {"model_type", "vit"}};
  add_encoder(config, graph, projection[0], family.blocks);
  config["image_size"] = graph.values[static_cast<size_t>(graph.features)].shape[2];
  config["patch_size"] = projection[2];
  config["num_channels"] = projection[1];
  config["qkv_bias"] = true;
  add_labels(config, shape_of(graph, "classifier.weight")[0]);
  return config;
}

ordered_json bert_config(const Graph& graph, const Family& family) {
  const bool answers = has_param(graph, "qa_outputs.weight");
  const Shape& words = shape_of(graph, "bert.embeddings.word_embeddings.weight");
  ordered_json config{{"architectures", {answers ? "BertForQuestionAnswering" : "BertForSequenceClassification"}},
                      {"model_type", "bert"}};
  add_encoder(config, graph, words[1], family.blocks);
  config["vocab_size"] = words[0];
  config["max_position_embeddings"] = shape_of(graph, "bert.embeddings.position_embeddings.weight")[0];
  config["type_vocab_size"] = shape_of(graph, "bert.embeddings.token_type_embeddings.weight")[0];
  config["pad_token_id"] = 0;
  if (!answers) add_labels(config, shape_of(graph, "classifier.weight")[0]);
  return config;
}

ordered_json gpt2_config(const Graph& graph, const Family& family) {
  const Shape& words = shape_of(graph, "transformer.wte.weight");
  ordered_json config{{"architectures", {"GPT2LMHeadModel"}}, {"model_type", "gpt2"}};
  config["vocab_size"] = words[0];
  config["n_positions"] = shape_of(graph, "transformer.wpe.weight")[0];
  config["n_embd"] = words[1];
  config["n_layer"] = num_attentions(graph);
  config["n_head"] = first<graph::AttentionAttrs>(graph).heads;
  config["n_inner"] = shape_of(graph, family.blocks + "0.mlp.c_fc.weight")[0];
  config["activation_function"] = activation_of(graph);
  config["resid_pdrop"] = dropout_of(graph);
  config["embd_pdrop"] = dropout_of(graph);
  config["attn_pdrop"] = first<graph::AttentionAttrs>(graph).dropout;
  config["layer_norm_epsilon"] = first<graph::LayerNormAttrs>(graph).epsilon;
  config["tie_word_embeddings"] = true;
  // "<|endoftext|>", by default; a smaller vocabulary has no such token.
  constexpr int64_t kEndOfText = 50256;
  const ordered_json end = words[0] > kEndOfText ? ordered_json(kEndOfText) : ordered_json();
  config["bos_token_id"] = end;
  config["eos_token_id"] = end;
  return config;
}

}  // namespace

ordered_json model_config(const Graph& graph) {
  const Family* family = family_of(graph);
  if (family == nullptr) return nullptr;
  if (family->base == "vit.") return vit_config(graph, *family);
  if (family->base == "bert.") return bert_config(graph, *family);
  return gpt2_config(graph, *family);
}

}  // namespace millrace::state
