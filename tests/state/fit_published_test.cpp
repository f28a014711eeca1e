// Files of Hugging Face's as they are found: with other heads, without the base's name, of other sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/state/params_file.h"
#include "millrace/state/safetensors.h"
#include "state/small_models.h"
#include "state/temporary_folder.h"

namespace millrace::state {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Tensors = std::map<std::string, Tensor>;
using Notes = std::vector<std::string>;

Tensors file_of(const graph::Graph& graph) { return published(graph, numbered_params(graph)); }

// The same tensors by the names that `rename` gives them; "" leaves one out.
template <typename Rename>
Tensors renamed(const Tensors& tensors, Rename rename) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    const std::string other = rename(name);
    if (!other.empty()) out[other] = tensor;
  }
  return out;
}

std::string without(const std::string& start, const std::string& name) {
  return name.starts_with(start) ? name.substr(start.size()) : name;
}

class FitPublished : public TemporaryFolder {
 protected:
  // Loads over -1s; what starts anew stays -1.
  Notes load(const Tensors& tensors, const graph::Graph& graph) {
    write_safetensors(path("w"), tensors);
    state_ = numbered_state(graph);
    for (auto& [name, tensor] : state_.params) std::fill(tensor.data.begin(), tensor.data.end(), -1.0f);
    EXPECT_NO_THROW(check_params(path("w"), graph));
    return load_params(path("w"), graph, state_);
  }

  bool starts_anew(const std::string& param) const {
    const std::vector<float>& data = state_.params.at(param).data;
    return std::all_of(data.begin(), data.end(), [](float value) { return value == -1; });
  }

  // What is said of a file that does not fit; from the header alone and with the data it is the same.
  std::string refusal(const Tensors& tensors, const graph::Graph& graph) {
    write_safetensors(path("w"), tensors);
    std::string loading, checking;
    const State before = numbered_state(graph);
    State state = before;
    try {
      load_params(path("w"), graph, state);
    } catch (const std::invalid_argument& error) {
      loading = error.what();
    }
    try {
      check_params(path("w"), graph);
    } catch (const std::invalid_argument& error) {
      checking = error.what();
    }
    EXPECT_EQ(loading, checking);
    EXPECT_EQ(state, before);
    EXPECT_EQ(loading.find('\n'), std::string::npos);
    return loading;
  }

  State state_;
};

TEST_F(FitPublished, AHeadForOtherClassesStartsAnewAndTheRestIsTaken) {
  const graph::Graph here = small_vit(5), there = small_vit(3);
  EXPECT_EQ(load(file_of(there), here),
            Notes{"classifier starts anew: classifier.weight is 3x4 in the file, 5x4 here"});
  EXPECT_TRUE(starts_anew("classifier.weight"));
  EXPECT_TRUE(starts_anew("classifier.bias"));
  const Tensors expected = numbered_params(there);
  for (const auto& [name, tensor] : state_.params) {
    if (name.starts_with("classifier.")) continue;
    EXPECT_EQ(tensor, expected.at(name)) << name;
  }
}

TEST_F(FitPublished, AHeadThatIsNotThereStartsAnew) {
  const Tensors file =
      renamed(file_of(small_bert()), [](auto& name) { return name.starts_with("classifier") ? "" : name; });
  EXPECT_EQ(load(file, small_bert()), Notes{"classifier starts anew: it is not in the file"});
  EXPECT_TRUE(starts_anew("classifier.weight"));
  EXPECT_FALSE(starts_anew("bert.pooler.dense.weight"));
}

TEST_F(FitPublished, AHeadStartsAnewAsAWhole) {
  Tensors file = file_of(small_bert());
  file.erase("classifier.weight");
  EXPECT_EQ(load(file, small_bert()), Notes{"classifier starts anew: it is not in the file"});
  EXPECT_TRUE(starts_anew("classifier.bias"));
}

TEST_F(FitPublished, OnlyHeadsStartAnew) {
  Tensors file = file_of(small_bert());
  file.erase("bert.encoder.layer.0.output.dense.bias");
  file.erase("bert.encoder.layer.0.attention.self.key.bias");
  EXPECT_EQ(refusal(file, small_bert()),
            path("w") +
                ": does not hold the parameters of bert_base: missing "
                "bert.encoder.layer.0.attention.self.key.bias, bert.encoder.layer.0.output.dense.bias");
  graph::Graph no_heads = small_bert();
  for (graph::Param& param : no_heads.params) param.is_head = false;
  EXPECT_THAT(refusal(file_of(small_bert(5)), no_heads), HasSubstr("classifier.weight is 5x4 and not 3x4"));
}

TEST_F(FitPublished, HeadsOfOtherTasksAreNamedAndNotUsed) {
  Tensors file = file_of(small_answering_bert());
  for (const char* name : {"cls.predictions.bias", "cls.seq_relationship.weight", "bert.pooler.dense.weight",
                           "bert.pooler.dense.bias", "classifier.weight"}) {
    file[name] = {{2}, {0, 0}};
  }
  EXPECT_EQ(
      load(file, small_answering_bert()),
      Notes{"not used of the file: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.weight and 2 more"});
  EXPECT_EQ(state_.params, numbered_params(small_answering_bert()));
}

TEST_F(FitPublished, AQuestionHeadStartsAnewFromAFileForClasses) {
  EXPECT_EQ(
      load(file_of(small_bert()), small_answering_bert()),
      (Notes{"qa_outputs starts anew: it is not in the file",
             "not used of the file: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias and 1 more"}));
  EXPECT_TRUE(starts_anew("qa_outputs.weight"));
}

TEST_F(FitPublished, TensorsOfAnotherModelAreRefused) {
  Tensors file = file_of(small_bert());
  file["encoder.extra.weight"] = {{1}, {0}};
  EXPECT_THAT(refusal(file, small_bert()), HasSubstr("unexpected encoder.extra.weight"));
  file.erase("encoder.extra.weight");
  file["bert.encoder.layer.0.adapter.weight"] = {{1}, {0}};
  EXPECT_THAT(refusal(file, small_bert()), HasSubstr("unexpected bert.encoder.layer.0.adapter.weight"));
  EXPECT_THAT(refusal(file_of(small_vit()), small_bert()),
              AllOf(HasSubstr("missing bert.embeddings."), HasSubstr("unexpected vit."), Not(HasSubstr("write"))));
}

TEST_F(FitPublished, HeadsOfOtherFamiliesAreRefused) {
  Tensors file = file_of(small_vit());
  file["qa_outputs.weight"] = {{1}, {0}};
  EXPECT_THAT(refusal(file, small_vit()), HasSubstr("unexpected qa_outputs.weight"));
}

TEST_F(FitPublished, TheNameOfTheBaseMayBeLeftOut) {
  const auto bare = [&](const graph::Graph& graph, const std::string& base) {
    return renamed(file_of(graph),
                   [&](auto& name) { return name.starts_with("classifier") ? std::string() : without(base, name); });
  };
  const Notes head_is_new{"classifier starts anew: it is not in the file"};
  EXPECT_EQ(load(bare(small_bert(), "bert."), small_bert()), head_is_new);
  EXPECT_EQ(state_.params.at("bert.pooler.dense.weight"), numbered_params(small_bert()).at("bert.pooler.dense.weight"));
  EXPECT_EQ(load(bare(small_gpt2(), "transformer."), small_gpt2()), Notes());
  EXPECT_EQ(state_.params, numbered_params(small_gpt2()));
  Tensors vit = bare(small_vit(), "vit.");
  vit["pooler.dense.weight"] = {{4, 4}, std::vector<float>(16)};
  EXPECT_EQ(load(vit, small_vit()), (Notes{head_is_new[0], "not used of the file: pooler.dense.weight"}));
}

TEST_F(FitPublished, TheNameOfTheBaseIsLeftOutEverywhereOrNowhere) {
  const Tensors file = renamed(file_of(small_bert()), [](auto& name) {
    return name.starts_with("bert.embeddings.") ? without("bert.", name) : name;
  });
  EXPECT_THAT(refusal(file, small_bert()),
              AllOf(HasSubstr("missing bert.embeddings."), HasSubstr("unexpected embeddings.")));
}

TEST_F(FitPublished, GammaAndBetaAreWeightAndBias) {
  const auto aged = [](const std::string& name) {
    const size_t norm = name.find("LayerNorm.");
    if (norm == std::string::npos) return name;
    return name.substr(0, norm) + (name.ends_with("weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
  };
  Tensors file = renamed(file_of(small_bert()), aged);
  ASSERT_TRUE(file.contains("bert.embeddings.LayerNorm.gamma"));
  EXPECT_EQ(load(file, small_bert()), Notes());
  EXPECT_EQ(state_.params, numbered_params(small_bert()));
  file["bert.embeddings.LayerNorm.weight"] = {{4}, {1, 2, 3, 4}};
  EXPECT_EQ(refusal(file, small_bert()), path("w") +
                                             ": holds both bert.embeddings.LayerNorm.gamma and "
                                             "bert.embeddings.LayerNorm.weight, which are one parameter; remove one");
}

TEST_F(FitPublished, Gpt2WeightsAreTurnedRound) {
  Tensors file = file_of(small_gpt2());
  file["transformer.h.0.mlp.c_fc.weight"] = {
      {4, 6}, {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 30, 31, 32, 33, 34, 35}};
  EXPECT_EQ(load(file, small_gpt2()), Notes());
  EXPECT_EQ(
      state_.params.at("transformer.h.0.mlp.c_fc.weight"),
      (Tensor{{6, 4}, {0, 10, 20, 30, 1, 11, 21, 31, 2, 12, 22, 32, 3, 13, 23, 33, 4, 14, 24, 34, 5, 15, 25, 35}}));
}

TEST_F(FitPublished, Gpt2WeightsThatAreNotTurnedRoundAreRefused) {
  Tensors file = file_of(small_gpt2());
  file["transformer.h.0.mlp.c_proj.weight"].shape = {4, 6};
  EXPECT_THAT(refusal(file, small_gpt2()), HasSubstr("transformer.h.0.mlp.c_proj.weight is 4x6 and not 6x4"));
}

TEST_F(FitPublished, Gpt2sMasksAreNoParametersAndItsHeadIsTied) {
  Tensors file = file_of(small_gpt2());
  file["transformer.h.0.attn.bias"] = {{1, 1, 2, 2}, {1, 0, 1, 1}};
  file["transformer.h.0.attn.masked_bias"] = {{}, {-1e4f}};
  file["lm_head.weight"] = file.at("transformer.wte.weight");
  EXPECT_EQ(load(file, small_gpt2()), Notes{"not used of the file: lm_head.weight"});
  EXPECT_EQ(state_.params, numbered_params(small_gpt2()));
}

TEST_F(FitPublished, PlacesForAnotherImageSizeAreResized) {
  Tensors file = file_of(small_vit());  // 2x2
  // A plane over the grid stays one inside; the class token's place is none of it.
  file["vit.embeddings.position_embeddings"] = {{1, 5, 4},
                                                {9, 9, 9, 9, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0}};
  EXPECT_EQ(load(file, small_vit(3, 16)),
            Notes{"vit.embeddings.position_embeddings is resized: a grid of 2x2 in the file, 4x4 here"});
  const Tensor& table = state_.params.at("vit.embeddings.position_embeddings");
  ASSERT_EQ(table.shape, (Shape{17, 4}));
  const auto at = [&](int row, int column, int feature) { return table.data[(1 + row * 4 + column) * 4 + feature]; };
  for (int feature = 0; feature < 4; ++feature) EXPECT_EQ(table.data[feature], 9);
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 4; ++column) {
      EXPECT_EQ(at(row, column, 0), at(0, column, 0));  // grows along a row alone
      EXPECT_EQ(at(row, column, 1), at(row, 0, 1));
      EXPECT_EQ(at(row, column, 0), at(column, row, 1));
      EXPECT_NEAR(at(row, column, 2), 1, 1e-6);
      EXPECT_EQ(at(row, column, 3), 0);
    }
  }
  EXPECT_LT(at(0, 1, 0), 0.5);
  EXPECT_GT(at(0, 2, 0), 0.5);
  EXPECT_NEAR(at(0, 1, 0) + at(0, 2, 0), 1, 1e-6);
}

TEST_F(FitPublished, PlacesThatAreNoGridAreRefused) {
  Tensors file = file_of(small_vit());
  file["vit.embeddings.position_embeddings"] = {{1, 4, 4}, std::vector<float>(16)};
  EXPECT_THAT(refusal(file, small_vit()), HasSubstr("vit.embeddings.position_embeddings is 1x4x4 and not 5x4"));
  file["vit.embeddings.position_embeddings"] = {{1, 10, 3}, std::vector<float>(30)};
  EXPECT_THAT(refusal(file, small_vit()), HasSubstr("vit.embeddings.position_embeddings is 1x10x3 and not 5x4"));
  file["vit.embeddings.position_embeddings"] = {{1, 1, 4}, std::vector<float>(4)};
  EXPECT_THAT(refusal(file, small_vit()), HasSubstr("vit.embeddings.position_embeddings is 1x1x4 and not 5x4"));
}

TEST_F(FitPublished, PlacesOfABertAreNotResized) {
  Tensors file = file_of(small_bert());
  file["bert.embeddings.position_embeddings.weight"] = {{17, 4}, std::vector<float>(68)};
  EXPECT_THAT(refusal(file, small_bert()),
              HasSubstr("bert.embeddings.position_embeddings.weight is 17x4 and not 512x4"));
}

TEST_F(FitPublished, TheKeysThatWouldFitAreNamed) {
  EXPECT_EQ(refusal(file_of(small_bert(3, 9)), small_bert(3, 7)),
            path("w") +
                ": does not hold the parameters of bert_base: of another shape "
                "bert.embeddings.word_embeddings.weight is 9x4 and not 7x4; write model.vocabulary: 9");
  EXPECT_THAT(refusal(file_of(small_bert(3, 7, 3)), small_bert()),
              AllOf(HasSubstr("unexpected bert.encoder.layer.1."), HasSubstr("; write model.layers: 3")));
  EXPECT_THAT(refusal(file_of(small_gpt2(1)), small_gpt2(12)),
              AllOf(HasSubstr("missing transformer.h.1."), HasSubstr("; write model.layers: 1")));
  Tensors file = file_of(small_gpt2());
  file["transformer.h.0.mlp.c_fc.weight"] = {{4, 8}, std::vector<float>(32)};
  EXPECT_THAT(refusal(file, small_gpt2()), HasSubstr("; write model.mlp: 8"));
  file = file_of(small_vit());
  file["vit.embeddings.patch_embeddings.projection.weight"] = {{6, 1, 2, 2}, std::vector<float>(24)};
  EXPECT_THAT(refusal(file, small_vit()), HasSubstr("; write model.width: 6, model.channels: 1, model.patch: 2"));
}

TEST_F(FitPublished, EveryThirdOfALayerMustFit) {
  Tensors file = file_of(small_bert());
  const std::string layer = "bert.encoder.layer.0.attention.self.";
  file[layer + "key.weight"] = {{5, 4}, std::vector<float>(20)};
  file[layer + "value.weight"] = {{3, 4}, std::vector<float>(12)};
  EXPECT_THAT(refusal(file, small_bert()), AllOf(HasSubstr(layer + "key.weight is 5x4 and not 4x4"),
                                                 HasSubstr(layer + "value.weight is 3x4 and not 4x4")));
}

}  // namespace
}  // namespace millrace::state
