#include "millrace/state/model_config.h"

#include <gtest/gtest.h>

#include "state/small_models.h"

namespace millrace::state {
namespace {

using nlohmann::json;

json config_of(const graph::Graph& graph) { return json::parse(model_config(graph).dump()); }

TEST(ModelConfig, OfAViT) {
  EXPECT_EQ(config_of(small_vit(2, 12)), json::parse(R"({
    "architectures": ["ViTForImageClassification"], "model_type": "vit",
    "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12,
    "image_size": 12, "patch_size": 4, "num_channels": 3, "qkv_bias": true,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}
  })"));
}

TEST(ModelConfig, OfABertWithClasses) {
  EXPECT_EQ(config_of(small_bert(1, 9, 3)), json::parse(R"({
    "architectures": ["BertForSequenceClassification"], "model_type": "bert",
    "hidden_size": 4, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 6, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12,
    "vocab_size": 9, "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0,
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}
  })"));
}

TEST(ModelConfig, OfABertThatAnswers) {
  const json config = config_of(small_answering_bert());
  EXPECT_EQ(config.at("architectures"), json::parse(R"(["BertForQuestionAnswering"])"));
  EXPECT_FALSE(config.contains("id2label"));
}

TEST(ModelConfig, OfAGpt2) {
  EXPECT_EQ(config_of(small_gpt2(2)), json::parse(R"({
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "vocab_size": 7, "n_positions": 1024, "n_embd": 4, "n_layer": 2, "n_head": 2, "n_inner": 6,
    "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true, "bos_token_id": null, "eos_token_id": null
  })"));
}

TEST(ModelConfig, TheEndOfTextIsNamedWhereTheVocabularyHasIt) {
  EXPECT_EQ(config_of(small_gpt2(1, 50257)).at("eos_token_id"), 50256);
}

TEST(ModelConfig, ConvolutionalNetworksHaveNone) {
  EXPECT_TRUE(model_config(model::build({.name = "resnet_small", .image_size = 32}, 1, 0)).is_null());
}

}  // namespace
}  // namespace millrace::state
