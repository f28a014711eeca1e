#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/state/params_file.h"
#include "millrace/state/safetensors.h"
#include "state/temporary_folder.h"

namespace millrace::state {
namespace {

using testing::ThrowsMessage;

graph::Graph graph_of(const std::vector<std::pair<std::string, Shape>>& params) {
  graph::Graph graph;
  graph.name = "tiny";
  for (const auto& [name, shape] : params) {
    graph::Param param;
    param.name = name;
    param.shape = shape;
    graph.params.push_back(param);
  }
  return graph;
}

graph::Graph tiny_graph() { return graph_of({{"fc.weight", {2, 3}}, {"fc.bias", {2}}}); }

const Tensor kWeight{{2, 3}, {1, 2, 3, 4, 5, 6}};
const Tensor kBias{{2}, {7, 8}};

class LoadParams : public TemporaryFolder {
 protected:
  // Loads these tensors over zeros.
  State load(const std::map<std::string, Tensor>& tensors) {
    write_safetensors(path("w"), tensors);
    State state = initial_state(tiny_graph(), 0);
    state.step = 5;
    load_params(path("w"), tiny_graph(), state);
    return state;
  }
};

TEST_F(LoadParams, PutsEveryTensorInItsPlace) {
  const State state = load({{"fc.weight", kWeight}, {"fc.bias", kBias}});
  EXPECT_EQ(state.params, (std::map<std::string, Tensor>{{"fc.weight", kWeight}, {"fc.bias", kBias}}));
  EXPECT_EQ(state.step, 5);
}

TEST_F(LoadParams, QueriesKeysAndValuesOfAFileAreOneLayer) {
  const graph::Graph graph = graph_of({{"a.qkv.weight", {6, 1}}, {"a.qkv.bias", {6}}});
  write_safetensors(path("w"), {{"a.query.weight", {{2, 1}, {1, 2}}},
                                {"a.key.weight", {{2, 1}, {3, 4}}},
                                {"a.value.weight", {{2, 1}, {5, 6}}},
                                {"a.query.bias", {{2}, {7, 8}}},
                                {"a.key.bias", {{2}, {9, 10}}},
                                {"a.value.bias", {{2}, {11, 12}}}});
  State state = initial_state(graph, 0);
  load_params(path("w"), graph, state);
  EXPECT_EQ(state.params.at("a.qkv.weight"), (Tensor{{6, 1}, {1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(state.params.at("a.qkv.bias"), (Tensor{{6}, {7, 8, 9, 10, 11, 12}}));
}

TEST_F(LoadParams, AxesForABatchOfOneAreLeftOut) {
  const graph::Graph graph = graph_of({{"cls", {3}}, {"places", {2, 2}}});
  write_safetensors(path("w"), {{"cls", {{1, 1, 3}, {1, 2, 3}}}, {"places", {{1, 2, 2}, {1, 2, 3, 4}}}});
  State state = initial_state(graph, 0);
  load_params(path("w"), graph, state);
  EXPECT_EQ(state.params.at("cls"), (Tensor{{3}, {1, 2, 3}}));
  EXPECT_EQ(state.params.at("places"), (Tensor{{2, 2}, {1, 2, 3, 4}}));
}

TEST_F(LoadParams, CountersOfTorchAreNoSurprise) {
  EXPECT_NO_THROW(load({{"fc.weight", kWeight}, {"fc.bias", kBias}, {"bn1.num_batches_tracked", {{}, {3}}}}));
}

TEST_F(LoadParams, NamesAllThatDoesNotFitInOneLine) {
  EXPECT_THAT(
      [this] {
        load({{"fc.weight", kBias}, {"head.bias", kBias}});
      },
      ThrowsMessage<std::invalid_argument>(
          path("w") + ": does not hold the parameters of tiny: missing fc.bias; unexpected head.bias; "
                      "of another shape fc.weight is 2 and not 2x3"));
}

TEST_F(LoadParams, CheckSaysTheSameWithoutTheData) {
  write_safetensors(path("w"), {{"fc.weight", kWeight}, {"fc.bias", kBias}, {"bn1.num_batches_tracked", {{}, {3}}}});
  EXPECT_NO_THROW(check_params(path("w"), tiny_graph()));
  write_safetensors(path("w"), {{"fc.weight", kBias}, {"head.bias", kBias}});
  EXPECT_THAT([this] { check_params(path("w"), tiny_graph()); },
              ThrowsMessage<std::invalid_argument>(
                  path("w") + ": does not hold the parameters of tiny: missing fc.bias; unexpected head.bias; "
                              "of another shape fc.weight is 2 and not 2x3"));
}

TEST_F(LoadParams, NamesTheFirstFewAndCountsTheRest) {
  std::map<std::string, Tensor> tensors{{"fc.weight", kWeight}, {"fc.bias", kBias}};
  for (char c = 'a'; c <= 'h'; ++c) tensors[std::string(1, c)] = kBias;
  EXPECT_THAT([&] { load(tensors); },
              ThrowsMessage<std::invalid_argument>(
                  path("w") + ": does not hold the parameters of tiny: unexpected a, b, c and 5 more"));
}

TEST_F(LoadParams, AFileThatDoesNotFitChangesNothing) {
  write_safetensors(path("w"), {{"fc.weight", kWeight}});
  const State before = initial_state(tiny_graph(), 0);
  State state = before;
  EXPECT_THROW(load_params(path("w"), tiny_graph(), state), std::invalid_argument);
  EXPECT_EQ(state, before);
}

}  // namespace
}  // namespace millrace::state
