#include "millrace/state/state.h"

#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cmath>

#include "millrace/base/random.h"

namespace millrace::state {
namespace {

graph::Param param(const std::string& name, Shape shape, graph::Init::Kind kind, double scale) {
  graph::Param result;
  result.name = name;
  result.shape = shape;
  result.init = {kind, scale};
  return result;
}

graph::Graph graph_of(std::vector<graph::Param> params) {
  graph::Graph graph;
  graph.params = std::move(params);
  return graph;
}

using Kind = graph::Init::Kind;

TEST(InitialState, ConstantsFillTheirShape) {
  const State state = initial_state(graph_of({param("norm.weight", {5}, Kind::Constant, 1.5)}), 0);
  EXPECT_EQ(state.params.at("norm.weight"), (Tensor{{5}, {1.5f, 1.5f, 1.5f, 1.5f, 1.5f}}));
  EXPECT_EQ(state.step, 0);
  EXPECT_EQ(state.samples, 0);
  EXPECT_TRUE(state.velocity.empty());
}

TEST(InitialState, UniformsAreTheWordsOfTheParametersStream) {
  const State state = initial_state(graph_of({param("w", {2, 3}, Kind::Uniform, 0.5)}), 7);
  const RandomStream stream(RandomStream::mix(7, hash_name("w")), 0, 0);
  const Tensor& w = state.params.at("w");
  ASSERT_EQ(w.data.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(w.data[i], 0.5f * (2 * uniform(stream.at(i / 4)[i % 4]) - 1));
}

TEST(InitialState, NormalsAreTheWordsOfTheParametersStreamInPairs) {
  const State state = initial_state(graph_of({param("w", {7}, Kind::Normal, 2.0)}), 7);
  const RandomStream stream(RandomStream::mix(7, hash_name("w")), 0, 0);
  const Tensor& w = state.params.at("w");
  for (size_t i = 0; i < 7; ++i) {
    const RandomBlock words = stream.at(i / 4);
    const auto pair = i % 4 < 2 ? normal(words[0], words[1]) : normal(words[2], words[3]);
    EXPECT_NEAR(w.data[i], 2.0f * pair[i % 2], 2e-6f) << i;
  }
}

TEST(InitialState, AParameterDependsOnSeedAndNameAlone) {
  const auto a = param("a", {1000}, Kind::Normal, 1), b = param("b", {1000}, Kind::Normal, 1);
  const State ab = initial_state(graph_of({a, b}), 1), ba = initial_state(graph_of({b, a}), 1);
  EXPECT_EQ(ab, ba);
  EXPECT_EQ(initial_state(graph_of({b}), 1).params.at("b"), ab.params.at("b"));
  EXPECT_NE(ab.params.at("a").data, ab.params.at("b").data);
  EXPECT_NE(initial_state(graph_of({a}), 2).params.at("a").data, ab.params.at("a").data);
}

TEST(InitialState, AShorterParameterIsABeginningOfALongerOne) {
  const int64_t sizes[] = {1, 3, 255, 256, 257, 65535, 65537, 200001};
  const auto longest = initial_state(graph_of({param("w", {200001}, Kind::Normal, 1)}), 3).params.at("w").data;
  for (int64_t size : sizes) {
    const auto data = initial_state(graph_of({param("w", {size}, Kind::Normal, 1)}), 3).params.at("w").data;
    EXPECT_TRUE(std::equal(data.begin(), data.end(), longest.begin())) << size;
  }
}

#ifdef _OPENMP
TEST(InitialState, ThreadsDoNotChangeIt) {
  const auto graph = graph_of({param("n", {300001}, Kind::Normal, 1), param("u", {300001}, Kind::Uniform, 1)});
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const State one = initial_state(graph, 5);
  omp_set_num_threads(3);
  const State three = initial_state(graph, 5);
  omp_set_num_threads(before);
  EXPECT_EQ(one, three);
}
#endif

TEST(InitialState, NormalsHaveTheMomentsOfNormals) {
  const int64_t count = 1'000'000;
  const auto data = initial_state(graph_of({param("w", {count}, Kind::Normal, 0.5)}), 11).params.at("w").data;
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    const double x = data[i] / 0.5;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    if (i > 0) neighbours += x * data[i - 1] / 0.5;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / count, 0, 5e-3);
  EXPECT_NEAR(squares / count, 1, 5 * std::sqrt(2.0) * 1e-3);
  EXPECT_NEAR(fourth / count, 3, 5 * std::sqrt(96.0) * 1e-3);
  EXPECT_NEAR(neighbours / count, 0, 5e-3);
}

TEST(StateBytes, ComeBackAsTheyWere) {
  State state;
  EXPECT_EQ(state_from_bytes(to_bytes(state)), state);
  state.params["w"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
  state.velocity["w"] = {{2, 3}, {6, 5, 4, 3, 2, 1}};
  EXPECT_EQ(state_from_bytes(to_bytes(state)), state);
  state.loss_scale = {32768, 7, 1};
  EXPECT_EQ(state_from_bytes(to_bytes(state)), state);
  std::string bytes = to_bytes(state);
  bytes.pop_back();
  EXPECT_THROW(state_from_bytes(bytes), std::runtime_error);
}

}  // namespace
}  // namespace millrace::state
