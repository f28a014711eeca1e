// Files as Hugging Face writes them: names and shapes are lists of what save_pretrained leaves for these sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/state/params_file.h"
#include "millrace/state/safetensors.h"
#include "state/small_models.h"
#include "state/temporary_folder.h"

namespace millrace::state {
namespace {

using Shapes = std::map<std::string, Shape>;

class WriteParams : public TemporaryFolder {
 protected:
  Shapes written_shapes(const graph::Graph& graph) const {
    write_params(path("w"), graph, numbered_params(graph));
    return read_shapes(path("w"));
  }
};

// What ViT and BERT have in each layer, `attention` being "attention.attention" or "attention.self".
Shapes encoder_layer(const std::string& layer, const std::string& attention, const std::vector<std::string>& norms) {
  Shapes shapes;
  for (const char* part : {".query", ".key", ".value"}) {
    shapes[layer + attention + part + ".weight"] = {4, 4};
    shapes[layer + attention + part + ".bias"] = {4};
  }
  for (const std::string& norm : norms) shapes[layer + norm + ".weight"] = shapes[layer + norm + ".bias"] = {4};
  shapes.merge(Shapes{{layer + "attention.output.dense.weight", {4, 4}},
                      {layer + "attention.output.dense.bias", {4}},
                      {layer + "intermediate.dense.weight", {6, 4}},
                      {layer + "intermediate.dense.bias", {6}},
                      {layer + "output.dense.weight", {4, 6}},
                      {layer + "output.dense.bias", {4}}});
  return shapes;
}

Shapes bert_without_head() {
  Shapes shapes =
      encoder_layer("bert.encoder.layer.0.", "attention.self", {"attention.output.LayerNorm", "output.LayerNorm"});
  shapes.merge(Shapes{{"bert.embeddings.word_embeddings.weight", {7, 4}},
                      {"bert.embeddings.position_embeddings.weight", {512, 4}},
                      {"bert.embeddings.token_type_embeddings.weight", {2, 4}},
                      {"bert.embeddings.LayerNorm.weight", {4}},
                      {"bert.embeddings.LayerNorm.bias", {4}}});
  return shapes;
}

TEST_F(WriteParams, OfAViTAreThoseOfViTForImageClassification) {
  Shapes expected =
      encoder_layer("vit.encoder.layer.0.", "attention.attention", {"layernorm_before", "layernorm_after"});
  expected.merge(Shapes{{"vit.embeddings.cls_token", {1, 1, 4}},
                        {"vit.embeddings.position_embeddings", {1, 5, 4}},
                        {"vit.embeddings.patch_embeddings.projection.weight", {4, 3, 4, 4}},
                        {"vit.embeddings.patch_embeddings.projection.bias", {4}},
                        {"vit.layernorm.weight", {4}},
                        {"vit.layernorm.bias", {4}},
                        {"classifier.weight", {3, 4}},
                        {"classifier.bias", {3}}});
  EXPECT_EQ(written_shapes(small_vit()), expected);
}

TEST_F(WriteParams, OfABertAreThoseOfBertForSequenceClassification) {
  Shapes expected = bert_without_head();
  expected.merge(Shapes{{"bert.pooler.dense.weight", {4, 4}},
                        {"bert.pooler.dense.bias", {4}},
                        {"classifier.weight", {3, 4}},
                        {"classifier.bias", {3}}});
  EXPECT_EQ(written_shapes(small_bert()), expected);
}

TEST_F(WriteParams, OfABertThatAnswersAreThoseOfBertForQuestionAnswering) {
  Shapes expected = bert_without_head();
  expected.merge(Shapes{{"qa_outputs.weight", {2, 4}}, {"qa_outputs.bias", {2}}});
  EXPECT_EQ(written_shapes(small_answering_bert()), expected);
}

TEST_F(WriteParams, OfAGpt2AreThoseOfGPT2LMHeadModelWithoutTheTiedHead) {
  EXPECT_EQ(written_shapes(small_gpt2()), (Shapes{{"transformer.wte.weight", {7, 4}},
                                                  {"transformer.wpe.weight", {1024, 4}},
                                                  {"transformer.h.0.ln_1.weight", {4}},
                                                  {"transformer.h.0.ln_1.bias", {4}},
                                                  {"transformer.h.0.attn.c_attn.weight", {4, 12}},
                                                  {"transformer.h.0.attn.c_attn.bias", {12}},
                                                  {"transformer.h.0.attn.c_proj.weight", {4, 4}},
                                                  {"transformer.h.0.attn.c_proj.bias", {4}},
                                                  {"transformer.h.0.ln_2.weight", {4}},
                                                  {"transformer.h.0.ln_2.bias", {4}},
                                                  {"transformer.h.0.mlp.c_fc.weight", {4, 6}},
                                                  {"transformer.h.0.mlp.c_fc.bias", {6}},
                                                  {"transformer.h.0.mlp.c_proj.weight", {6, 4}},
                                                  {"transformer.h.0.mlp.c_proj.bias", {4}},
                                                  {"transformer.ln_f.weight", {4}},
                                                  {"transformer.ln_f.bias", {4}}}));
}

TEST_F(WriteParams, QueriesKeysAndValuesAreTheThreeThirdsOfALayer) {
  graph::Graph graph;
  graph.params.push_back(named_param("a.qkv.weight", {6, 1}));
  const auto tensors = published(graph, {{"a.qkv.weight", {{6, 1}, {1, 2, 3, 4, 5, 6}}}});
  EXPECT_EQ(tensors, (std::map<std::string, Tensor>{{"a.query.weight", {{2, 1}, {1, 2}}},
                                                    {"a.key.weight", {{2, 1}, {3, 4}}},
                                                    {"a.value.weight", {{2, 1}, {5, 6}}}}));
}

TEST_F(WriteParams, RowsAndColumnsAreExchangedWhereTheFileHasThemSo) {
  graph::Graph graph;
  graph.params.push_back(named_param("w", {2, 3}, true));
  EXPECT_EQ(published(graph, {{"w", {{2, 3}, {1, 2, 3, 4, 5, 6}}}}),
            (std::map<std::string, Tensor>{{"w", {{3, 2}, {1, 4, 2, 5, 3, 6}}}}));
}

TEST_F(WriteParams, TheFormatIsTorchs) {
  write_params(path("w"), small_vit(), numbered_params(small_vit()));
  EXPECT_EQ(read_safetensors(path("w")).metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST_F(WriteParams, WhatIsWrittenLoadsToTheBit) {
  for (const graph::Graph& graph : {small_vit(), small_bert(3, 7, 3), small_answering_bert(), small_gpt2(2)}) {
    const auto params = numbered_params(graph);
    write_params(path("w"), graph, params);
    State state;
    EXPECT_EQ(load_params(path("w"), graph, state), std::vector<std::string>()) << graph.name;
    EXPECT_EQ(state.params, params) << graph.name;
  }
}

}  // namespace
}  // namespace millrace::state
