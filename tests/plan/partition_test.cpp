#include "millrace/plan/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "millrace/base/random.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"

namespace millrace::plan {
namespace {

using graph::Graph;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Names = std::vector<std::string>;
using Weights = std::vector<double>;

Graph unfused(const std::string& name) { return model::build({.name = name}, 1, 0.0); }
Graph fused(const std::string& name) { return graph::fuse(unfused(name)); }

// The layer each stage begins with.
Names first_layers(const Graph& graph, const std::vector<int>& first) {
  Names names;
  for (int op : first) names.push_back(graph.ops[op].name);
  return names;
}

double weight_of(const Graph& graph, const Weights& weights, const std::string& layer) {
  for (size_t op = 0; op < graph.ops.size(); ++op) {
    if (graph.ops[op].name == layer) return weights[op];
  }
  ADD_FAILURE() << layer;
  return 0;
}

double slowest(const Weights& weights, const Weights& speeds, const std::vector<int>& first) {
  double most = 0;
  for (size_t stage = 0; stage < first.size(); ++stage) {
    const auto end = stage + 1 < first.size() ? weights.begin() + first[stage + 1] : weights.end();
    most = std::max(most, std::accumulate(weights.begin() + first[stage], end, 0.0) / speeds[stage]);
  }
  return most;
}

template <typename Message>
auto refuses(Message message) {
  return ThrowsMessage<std::invalid_argument>(message);
}

TEST(OperatorWeights, AddUpToTheModelsOwnOperators) {
  for (const std::string& name : model::model_names()) {
    const Weights weights = operator_weights(fused(name));
    EXPECT_EQ(std::accumulate(weights.begin(), weights.end(), 0.0), unfused(name).ops.size()) << name;
    const Weights alone = operator_weights(unfused(name));
    EXPECT_EQ(std::count(alone.begin(), alone.end(), 1.0), static_cast<int>(alone.size())) << name;
  }
}

TEST(OperatorWeights, CountWhatAnOperatorTookIn) {
  const Graph resnet = fused("resnet50"), alexnet = fused("alexnet");
  const Weights of_resnet = operator_weights(resnet), of_alexnet = operator_weights(alexnet);
  EXPECT_EQ(weight_of(resnet, of_resnet, "conv1"), 1);
  EXPECT_EQ(weight_of(resnet, of_resnet, "layer1.0.downsample.1"), 1);
  EXPECT_EQ(weight_of(resnet, of_resnet, "layer1.0.bn1"), 2);
  EXPECT_EQ(weight_of(resnet, of_resnet, "layer1.0.bn3"), 3);
  EXPECT_EQ(weight_of(alexnet, of_alexnet, "features.6"), 2);
  EXPECT_EQ(weight_of(alexnet, of_alexnet, "features.0"), 1) << "its ReLU moved behind the pool";
  EXPECT_EQ(weight_of(alexnet, of_alexnet, "classifier.1"), 2);
}

TEST(FlopWeights, ArePositiveAndLedByProducts) {
  const Graph graph = fused("alexnet");
  const Weights weights = flop_weights(graph);
  EXPECT_EQ(weight_of(graph, weights, "features.3"), 2.0 * 192 * 27 * 27 * 64 * 5 * 5);
  EXPECT_EQ(weight_of(graph, weights, "classifier.1"), 2.0 * 4096 * 9216);
  EXPECT_EQ(weight_of(graph, weights, "features.12"), 256 * 6 * 6);
  for (double weight : weights) EXPECT_GT(weight, 0);
}

TEST(CutByShares, CutsWhereTheRunningSumIsNearest) {
  EXPECT_EQ(cut_by_shares(Weights{1, 1, 1, 1}, Weights{1, 1}), (std::vector<int>{0, 2}));
  EXPECT_EQ(cut_by_shares(Weights{1, 1, 1, 1}, Weights{3, 1}), (std::vector<int>{0, 3}));
  EXPECT_EQ(cut_by_shares(Weights{1, 5, 1, 1}, Weights{1, 1}), (std::vector<int>{0, 2}));
  EXPECT_EQ(cut_by_shares(Weights{2, 1, 1, 2}, Weights{1, 1, 1}), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(cut_by_shares(Weights{4}, Weights{3}), (std::vector<int>{0}));
}

TEST(CutByShares, EveryStageHasAnOperator) {
  EXPECT_EQ(cut_by_shares(Weights{1, 1, 1}, Weights{1000, 1, 1}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(cut_by_shares(Weights{1, 1, 1}, Weights{1, 1, 1000}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(cut_by_shares(Weights{100, 1, 1, 1}, Weights{1, 1, 1}), (std::vector<int>{0, 1, 2}));
  EXPECT_THAT(
      [] {
        cut_by_shares(Weights{1, 1}, Weights{1, 1, 1});
      },
      refuses("2 operators cannot be cut into 3 stages; write a placement with at most 2"));
}

// The shares that were published with these models.
TEST(CutByShares, CutsTheModelsByTheirPublishedShares) {
  const auto second_layer = [](const std::string& name, const Weights& shares) {
    const Graph graph = fused(name);
    return first_layers(graph, cut_by_shares(operator_weights(graph), shares)).back();
  };
  EXPECT_EQ(second_layer("alexnet", {10, 1}), "classifier.6");
  EXPECT_EQ(second_layer("alexnet", {3, 1}), "classifier.3");
  EXPECT_EQ(second_layer("vgg16", {11, 7}), "features.24");
  EXPECT_EQ(second_layer("resnet50", {1, 27}), "layer1.0.conv1");
}

// By hand: the convolutions of AlexNet have 1.311 GFlop, 187 MFlop for each of 7 replicas; the linear layers 117.
TEST(BalancedCut, LeavesAlexNetsLinearLayersToTheLastOfEightDevices) {
  const Graph graph = fused("alexnet");
  const Weights weights = flop_weights(graph), speeds{7, 1};
  const std::vector<int> first = balanced_cut(weights, speeds);
  EXPECT_EQ(first_layers(graph, first), (Names{"features.0", "features.12"}));
  EXPECT_NEAR(slowest(weights, speeds, first), 1311.1e6 / 7, 0.1e6);
}

// By hand: features.3 alone has 448 of 1429 MFlop; with what is before it 588, with what is after it 672.
TEST(BalancedCut, CutsAlexNetsFlopsInFour) {
  const Graph graph = fused("alexnet");
  EXPECT_EQ(first_layers(graph, balanced_cut(flop_weights(graph), Weights{1, 1, 1, 1})),
            (Names{"features.0", "features.2", "features.6", "features.10"}));
}

// By hand: the last three convolutions and the linear layers have 3.0 GFlop, the rest 27.9, 4.0 per replica; one more
// convolution would make it 6.7.
TEST(BalancedCut, LeavesVgg16sLastBlockToTheLastOfEightDevices) {
  const Graph graph = fused("vgg16");
  EXPECT_EQ(first_layers(graph, balanced_cut(flop_weights(graph), Weights{7, 1})),
            (Names{"features.0", "features.23"}));
}

TEST(BalancedCut, IsNeverSlowerThanACutByShares) {
  for (const char* name : {"alexnet", "vgg16", "resnet50"}) {
    const Weights weights = flop_weights(fused(name));
    for (const Weights& speeds : {Weights{1, 1}, Weights{7, 1}, Weights{4, 2, 1, 1}, Weights(8, 1.0)}) {
      EXPECT_LE(slowest(weights, speeds, balanced_cut(weights, speeds)),
                slowest(weights, speeds, cut_by_shares(weights, speeds)))
          << name;
    }
  }
}

TEST(BalancedCut, IsTheBestOfAllCuts) {
  const RandomStream random(3, 0, 0);
  for (uint64_t trial = 0; trial < 200; ++trial) {
    Weights weights, speeds;
    for (uint64_t op = 0; op < 4 + trial % 6; ++op) weights.push_back(1 + random.at(100 * trial + op)[0] % 20);
    for (uint64_t stage = 0; stage < 3; ++stage) speeds.push_back(1 + random.at(100 * trial + 50 + stage)[0] % 4);
    double best = 1e9;
    const int num_ops = static_cast<int>(weights.size());
    for (int second = 1; second < num_ops; ++second) {
      for (int third = second + 1; third < num_ops; ++third) {
        best = std::min(best, slowest(weights, speeds, {0, second, third}));
      }
    }
    EXPECT_EQ(slowest(weights, speeds, balanced_cut(weights, speeds)), best) << "trial " << trial;
  }
}

TEST(BalancedCut, RefusesMoreStagesThanOperators) {
  EXPECT_EQ(balanced_cut(Weights{1, 2, 3}, Weights{1, 1, 1}), (std::vector<int>{0, 1, 2}));
  EXPECT_THAT([] { balanced_cut(Weights{1}, Weights{1, 1}); }, refuses(HasSubstr("1 operators cannot be cut into 2")));
}

TEST(CutByNames, TakesLayersAndPrefixes) {
  const Graph resnet = fused("resnet50"), alexnet = fused("alexnet");
  const auto layers = [](const Graph& graph, const Names& cuts) {
    return first_layers(graph, cut_by_names(graph, cuts));
  };
  EXPECT_EQ(layers(resnet, {"layer2", "layer3.1", "fc"}),
            (Names{"conv1", "layer2.0.downsample.0", "layer3.1.conv1", "fc"}));
  EXPECT_EQ(layers(resnet, {"layer1.0.bn3"}), (Names{"conv1", "layer1.0.bn3"}));
  EXPECT_EQ(layers(alexnet, {"classifier"}), (Names{"features.0", "classifier.0"}));
  EXPECT_EQ(layers(alexnet, {"features.10"}), (Names{"features.0", "features.10"}));
  EXPECT_EQ(layers(alexnet, {}), (Names{"features.0"}));
}

TEST(CutByNames, UnknownLayersGetTheNearest) {
  const Graph graph = fused("resnet50");
  EXPECT_THAT([&] { cut_by_names(graph, {"layer5"}); },
              refuses("parallel.cuts: resnet50 has no layer \"layer5\" that a stage can begin with; did you mean "
                      "\"layer1\"?"));
  EXPECT_THAT([&] { cut_by_names(graph, {"layer3.0.cnov2"}); }, refuses(HasSubstr("did you mean \"layer3.0.conv2\"?")));
  EXPECT_THAT([&] { cut_by_names(graph, {"xyzzy"}); }, refuses(HasSubstr("; its last is \"loss\"")));
  EXPECT_THAT([&] { cut_by_names(graph, {"layer"}); }, refuses(HasSubstr("no layer \"layer\""))) << "not a prefix";
}

TEST(CutByNames, FollowTheModelsOrder) {
  const Graph graph = fused("resnet50");
  EXPECT_THAT(
      [&] {
        cut_by_names(graph, {"layer3", "layer2"});
      },
      refuses("parallel.cuts: \"layer2\" does not come after \"layer3\" in resnet50; write the layers in the "
              "model's order"));
  EXPECT_THAT([&] { cut_by_names(graph, {"layer3", "layer3"}); }, refuses(HasSubstr("does not come after")));
  EXPECT_THAT([&] { cut_by_names(graph, {"conv1"}); },
              refuses("parallel.cuts: resnet50 begins with \"conv1\", so that stage 0 would be empty; write a later "
                      "layer"));
}

// Stage k + 1 begins with module begins[k].
std::vector<int> modules(int num_modules, const std::vector<int>& begins) {
  std::vector<int> stages;
  for (int module = 0; module < num_modules; ++module) {
    stages.push_back(static_cast<int>(std::upper_bound(begins.begin(), begins.end(), module) - begins.begin()));
  }
  return stages;
}

TEST(CutByModules, ModulesAreTheModelsOwnOperators) {
  const Graph graph = fused("alexnet");  // 22 operators before they were fused
  const auto layers = [&](const std::vector<int>& begins) {
    return first_layers(graph, cut_by_modules(graph, modules(22, begins)));
  };
  EXPECT_EQ(layers({14}), (Names{"features.0", "classifier.0"}));
  EXPECT_EQ(layers({6, 13}), (Names{"features.0", "features.6", "flatten"}));
  EXPECT_EQ(layers({16}), (Names{"features.0", "classifier.3"})) << "the ReLU stays with its layer";
  EXPECT_EQ(first_layers(unfused("alexnet"), cut_by_modules(unfused("alexnet"), modules(22, {16}))),
            (Names{"features.0", "classifier.2"}));
}

TEST(CutByModules, RefusesAnotherNumberOfModules) {
  EXPECT_THAT(
      [] {
        cut_by_modules(fused("alexnet"), {0, 0, 1, 1});
      },
      refuses("parallel.stage_file: module_to_stage_map has 4 entries for 2 stages; write 22, one for each operator of "
              "alexnet with its loss, or 3, one for each stage and one for the loss"));
}

TEST(GeneratedModules, AreOneForEachStageAndTheLoss) {
  const Graph graph = fused("alexnet");
  EXPECT_TRUE(has_generated_modules(graph, {0, 1, 1}));
  EXPECT_TRUE(has_generated_modules(graph, {0, 1, 2, 2}));
  EXPECT_TRUE(has_generated_modules(graph, {0, 0, 0})) << "one stage";
  EXPECT_FALSE(has_generated_modules(graph, {0, 1}));
  EXPECT_FALSE(has_generated_modules(graph, {0, 0, 1})) << "the loss alone in its stage";
  EXPECT_FALSE(has_generated_modules(graph, {0, 0, 1, 1}));
  EXPECT_FALSE(has_generated_modules(graph, modules(22, {14})));
  std::vector<int> one_operator_a_stage(22);
  std::iota(one_operator_a_stage.begin(), one_operator_a_stage.end() - 1, 0);
  one_operator_a_stage.back() = 20;
  EXPECT_FALSE(has_generated_modules(graph, one_operator_a_stage)) << "the operators come first";
}

TEST(CutByModules, RefusesAStageInsideAFusedOperator) {
  EXPECT_THAT(
      [] {
        cut_by_modules(fused("alexnet"), modules(22, {16, 17}));
      },
      refuses("parallel.stage_file: all of stage 1 is computed together with \"classifier.1\", which belongs "
              "to stage 0; give stage 1 another module"));
}

}  // namespace
}  // namespace millrace::plan
