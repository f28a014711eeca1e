#include "millrace/graph/prefix.h"

#include <gtest/gtest.h>

#include "millrace/model/model.h"

namespace millrace::graph {
namespace {

Graph frozen(const job::Model& model, int layers) {
  job::Job job;
  job.model = model;
  job.model.frozen = layers;
  return model::training_graph(job, 2);
}

const job::Model kVit{
    .name = "vit_b_16", .classes = 10, .image_size = 16, .width = 12, .layers = 3, .heads = 3, .mlp = 24, .patch = 8};
const job::Model kBert{
    .name = "bert_base", .classes = 3, .width = 12, .layers = 2, .heads = 2, .mlp = 20, .vocabulary = 40, .tokens = 8};

// Of every operator of a frozen layer nothing but its forward, as in evaluation.
TEST(Freeze, FrozenLayersHaveNoGradientsAndNoUpdates) {
  for (const char* name : {"vit", "bert", "resnet_small", "vgg16_bn", "alexnet_small"}) {
    SCOPED_TRACE(name);
    job::Model model{.name = name, .classes = 10, .image_size = 32};
    if (std::string(name) == "vit") model = kVit;
    if (std::string(name) == "bert") model = kBert;
    const Graph graph = frozen(model, 2);
    const Program program = training_program(graph, {});
    int forwards = 0;
    for (const Node& node : program.nodes) {
      if (!graph.ops[node.op].frozen) continue;
      EXPECT_EQ(node.pass, Pass::Evaluate) << node.name;
      EXPECT_NE(node.kind, OpKind::Dropout) << node.name;
      ++forwards;
    }
    EXPECT_GT(forwards, 0);
    for (const Buffer& buffer : program.buffers) {
      if (buffer.param == kNone || !graph.params[buffer.param].frozen) continue;
      EXPECT_EQ(buffer.role, BufferRole::Constant) << buffer.name;
    }
    for (const Node& node : program.nodes) {
      if (!is_step(node.kind)) continue;
      EXPECT_FALSE(graph.params[program.buffers[node.reads[0]].param].frozen) << node.name;
    }
  }
}

TEST(Freeze, LayersAreCountedFromTheFirstAndTheHeadIsNone) {
  EXPECT_EQ(num_layers(frozen(kVit, 0)), 3);
  EXPECT_EQ(num_layers(frozen(kBert, 0)), 2);
  EXPECT_EQ(num_layers(frozen({.name = "resnet50", .classes = 10, .image_size = 32}, 0)), 16);
  EXPECT_EQ(num_layers(frozen({.name = "vgg16", .classes = 10, .image_size = 32}, 0)), 15);
  EXPECT_EQ(num_layers(frozen({.name = "alexnet_small", .classes = 10, .image_size = 32}, 0)), 7);
}

TEST(PrefixEnd, IsTheOnlyValueThatIsReadBehindFrozenLayers) {
  const Graph graph = frozen(kVit, 2);
  const Program program = training_program(graph, {});
  const std::optional<PrefixEnd> end = prefix_end(graph, program, 2);
  ASSERT_TRUE(end);
  EXPECT_EQ(program.buffers[end->output].name, "vit.encoder.layer.1.residual");
  EXPECT_EQ(program.nodes[end->node].name, "vit.encoder.layer.2.layernorm_before");
  EXPECT_FALSE(end->reads_input);
  ASSERT_TRUE(prefix_end(graph, program, 1));
  EXPECT_EQ(program.buffers[prefix_end(graph, program, 1)->output].name, "vit.encoder.layer.0.residual");
  EXPECT_FALSE(prefix_end(graph, program, 3)) << "the third layer learns";
  EXPECT_FALSE(prefix_end(graph, program, 0));
}

// Every attention of BERT looks at the tokens.
TEST(PrefixEnd, SaysWhereTheInputIsReadBehindItToo) {
  const Graph graph = frozen(kBert, 1);
  const std::optional<PrefixEnd> end = prefix_end(graph, training_program(graph, {}), 1);
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->reads_input);
}

TEST(PrefixEnd, IsOnTheStageThatHasAllFrozenLayers) {
  const Graph graph = frozen(kVit, 2);
  OpId cut = 0;
  while (graph.ops[cut].name != "vit.encoder.layer.1.layernorm_before") ++cut;
  EXPECT_FALSE(prefix_end(graph, training_program(graph, {.stage = {{0, cut}, 1}}), 2));
  // The first stage has the first layer whole, whose output goes to the next.
  const Program first = training_program(graph, {.stage = {{0, cut}, 0}});
  ASSERT_TRUE(prefix_end(graph, first, 1));
  EXPECT_EQ(prefix_end(graph, first, 1)->node, first.nodes.size());
}

}  // namespace
}  // namespace millrace::graph
