// PipeDream's graph.txt: what is read, and what is refused in one line.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "millrace/profile/profile.h"

namespace millrace::profile {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Profile read(const std::string& model) {
  const std::string path = std::string(MILLRACE_SOURCE_DIR) + "/tests/profile/data/" + model + ".graph.txt";
  std::ifstream in(path, std::ios::binary);
  return parse_pipedream_graph({std::istreambuf_iterator<char>(in), {}}, path);
}

std::string node(const std::string& id, const std::string& kind = "ReLU(inplace)",
                 const std::string& activation = "8.000") {
  return id + " -- " + kind +
         " -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=" + activation +
         ", parameter_size=4.000\n";
}

std::string refusal(const std::string& text) {
  try {
    parse_pipedream_graph(text, "g.txt");
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST(PipeDreamGraph, AlexNetWithoutItsInput) {
  const Profile profile = read("alexnet");
  EXPECT_EQ(profile.model, "alexnet");
  ASSERT_EQ(profile.operators.size(), 22u);
  EXPECT_EQ(profile.operators[0].name, "node2");
  EXPECT_EQ(profile.operators[0].kind, "Conv2d");
  EXPECT_DOUBLE_EQ(profile.operators[0].forward.median, 22.316e-3);
  EXPECT_DOUBLE_EQ(profile.operators[0].input_grad.median + profile.operators[0].weight_grad.median, 6.405e-3);
  EXPECT_EQ(profile.operators[0].output_bytes, 198246400);
  EXPECT_EQ(profile.operators[21].name, "node23");
  EXPECT_EQ(profile.operators[21].param_bytes, 16388000);
  EXPECT_EQ(profile.edges.size(), 22u);  // a chain but for one edge past Size
}

TEST(PipeDreamGraph, Vgg16) { EXPECT_EQ(read("vgg16").operators.size(), 40u); }

TEST(PipeDreamGraph, OrdersLinesAndSumsLists) {
  std::string staged = node("node9");
  staged.insert(staged.size() - 1, " -- stage_id=1");
  const Profile profile = parse_pipedream_graph(
      "\tnode2 -- node10\n\tnode9 -- node2\r\n" + node("node10") + node("node2", "Split", "[3; 4.000]") + "\n" + staged,
      "g.txt");
  ASSERT_EQ(profile.operators.size(), 3u);
  EXPECT_EQ(profile.operators[0].name, "node9");
  EXPECT_EQ(profile.operators[1].output_bytes, 7);
  EXPECT_EQ(profile.operators[2].name, "node10");
  EXPECT_EQ(profile.edges, (std::vector<Edge>{{0, 1}, {1, 2}}));
}

TEST(PipeDreamGraph, RefusesWithTheLine) {
  EXPECT_THAT(refusal(""), AllOf(StartsWith("g.txt: "), HasSubstr("no layer")));
  EXPECT_THAT(refusal(node("node1", "Input")), HasSubstr("no layer"));
  EXPECT_THAT(refusal(node("a") + "junk\n"), StartsWith("g.txt:2: \"junk\" is neither a node"));
  EXPECT_THAT(refusal(node("a") + node("a")), StartsWith("g.txt:2: node \"a\" stands in line 1"));
  EXPECT_THAT(refusal(node("a") + "\ta -- b\n"), StartsWith("g.txt:2: there is no node \"b\""));
  EXPECT_THAT(refusal("a -- ReLU -- forward_compute_time=1\n"),
              StartsWith("g.txt:1: backward_compute_time is missing"));
  EXPECT_THAT(refusal(node("a", "ReLU", "-1")), StartsWith("g.txt:1: activation_size is \"-1\""));
  EXPECT_THAT(refusal(node("a", "ReLU", "nan")), StartsWith("g.txt:1: activation_size is \"nan\""));
  EXPECT_THAT(refusal(node("a", "ReLU", "[1; 2")), HasSubstr("ends with ]"));
}

TEST(PipeDreamGraph, NamesACycle) {
  EXPECT_THAT(refusal(node("a") + "\ta -- a\n"), HasSubstr("a cycle: a -> a;"));
  EXPECT_THAT(refusal(node("a") + node("b") + node("c") + node("d") + "\ta -- b\n\tb -- c\n\tc -- b\n\tc -- d\n"),
              HasSubstr("a cycle: b -> c -> b;"));
  std::string ring;
  for (char c = 'a'; c < 'z'; ++c)
    ring += node(std::string(1, c)) + "\t" + c + " -- " + (c == 'y' ? 'a' : char(c + 1)) + "\n";
  EXPECT_THAT(refusal(ring), HasSubstr(" -> ... -> "));
}

}  // namespace
}  // namespace millrace::profile
