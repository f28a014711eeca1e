#include "millrace/graph/fuse.h"

#include <gtest/gtest.h>

#include "millrace/graph/builder.h"
#include "millrace/job/job.h"
#include "millrace/model/model.h"

namespace millrace::graph {
namespace {

Builder net() { return {"net", 2, 4, 6, 6}; }
ValueId conv(Builder& b, const std::string& name, ValueId x) {
  return b.conv(name, x, {.out_channels = 4, .window = Window::square(3, 1, 1)}, {});
}
Graph finish(Builder& b, ValueId x) {
  const ValueId logits = b.linear("fc", b.flatten("flat", x), {.out_features = 3}, {});
  b.softmax_cross_entropy("loss", logits, 0);
  return std::move(b).finish();
}

// "conv2d c" for every operator, with "+add" and "+relu" for what it took in.
std::vector<std::string> summary(const Graph& graph) {
  std::vector<std::string> lines;
  for (const Op& op : graph.ops) {
    std::string line = std::string(name_of(op.kind)) + " " + op.name;
    if (const auto* norm = std::get_if<BatchNormAttrs>(&op.attrs)) {
      if (norm->residual) line += " +add";
      if (norm->relu) line += " +relu";
    }
    if (const auto* attrs = std::get_if<Conv2dAttrs>(&op.attrs); attrs && attrs->relu) line += " +relu";
    if (const auto* attrs = std::get_if<LinearAttrs>(&op.attrs); attrs && attrs->relu) line += " +relu";
    lines.push_back(line);
  }
  return lines;
}
using Lines = std::vector<std::string>;
const Lines kTail{"flatten flat", "linear fc", "softmax_cross_entropy loss"};
Lines with_tail(Lines lines) {
  lines.insert(lines.end(), kTail.begin(), kTail.end());
  return lines;
}

TEST(Fuse, ConvolutionAndLinearTakeTheirRelu) {
  Builder b = net();
  ValueId x = b.flatten("f", b.relu("r", conv(b, "c", b.images())));
  x = b.relu("r2", b.linear("l", x, {.out_features = 4}, {}));
  b.softmax_cross_entropy("loss", b.linear("fc", x, {.out_features = 3}, {}), 0);
  const Graph fused = fuse(std::move(b).finish());
  EXPECT_EQ(summary(fused),
            (Lines{"conv2d c +relu", "flatten f", "linear l +relu", "linear fc", "softmax_cross_entropy loss"}));
  EXPECT_EQ(fused.ops[1].inputs[0], fused.ops[0].output) << "readers follow";
}

TEST(Fuse, BatchNormTakesItsRelu) {
  Builder b = net();
  const Graph graph = finish(b, b.relu("r", b.batch_norm("n", conv(b, "c", b.images()))));
  EXPECT_EQ(summary(fuse(graph)), with_tail({"conv2d c", "batch_norm n +relu"}));
}

TEST(Fuse, BatchNormTakesTheAddAndItsRelu) {
  for (bool swapped : {false, true}) {
    Builder b = net();
    const ValueId shortcut = conv(b, "s", b.images());
    const ValueId normed = b.batch_norm("n", conv(b, "c", b.images()));
    const Graph graph = finish(b, b.relu("r", swapped ? b.add("a", shortcut, normed) : b.add("a", normed, shortcut)));
    const Graph fused = fuse(graph);
    EXPECT_EQ(summary(fused), with_tail({"conv2d s", "conv2d c", "batch_norm n +add +relu"}));
    EXPECT_EQ(fused.ops[2].inputs, (std::vector<ValueId>{fused.ops[1].output, shortcut}));
  }
}

TEST(Fuse, BatchNormTakesAnAddWithoutRelu) {
  Builder b = net();
  const ValueId normed = b.batch_norm("n", conv(b, "c", b.images()));
  EXPECT_EQ(summary(fuse(finish(b, b.add("a", normed, b.images())))), with_tail({"conv2d c", "batch_norm n +add"}));
}

// Of two batch norms under one add only the later can: the other's addend is not there yet.
TEST(Fuse, TheLaterOfTwoBatchNormsTakesTheAdd) {
  Builder b = net();
  const ValueId first = b.batch_norm("n1", conv(b, "c1", b.images()));
  const ValueId second = b.batch_norm("n2", conv(b, "c2", b.images()));
  EXPECT_EQ(summary(fuse(finish(b, b.add("a", first, second)))),
            with_tail({"conv2d c1", "batch_norm n1", "conv2d c2", "batch_norm n2 +add"}));
}

TEST(Fuse, AValueReadTwiceStaysWhole) {
  Builder b = net();
  const ValueId c = conv(b, "c", b.images());
  const ValueId x = b.add("a", b.relu("r", c), c);
  EXPECT_EQ(summary(fuse(finish(b, x))), with_tail({"conv2d c", "relu r", "add a"}));

  Builder b2 = net();
  const ValueId n = b2.batch_norm("n", conv(b2, "c", b2.images()));
  EXPECT_EQ(summary(fuse(finish(b2, b2.add("a", b2.relu("r", n), n)))),
            with_tail({"conv2d c", "batch_norm n", "relu r", "add a"}));

  Builder b3 = net();
  const ValueId m = b3.batch_norm("n", conv(b3, "c", b3.images()));
  EXPECT_EQ(summary(fuse(finish(b3, b3.add("a", m, m)))), with_tail({"conv2d c", "batch_norm n", "add a"}));
}

TEST(Fuse, ASumReadTwiceKeepsItsRelu) {
  Builder b = net();
  const ValueId sum = b.add("a", b.batch_norm("n", conv(b, "c", b.images())), b.images());
  const ValueId x = b.add("a2", b.relu("r", sum), sum);
  EXPECT_EQ(summary(fuse(finish(b, x))), with_tail({"conv2d c", "batch_norm n +add", "relu r", "add a2"}));
}

TEST(Fuse, ReluOfAveragePoolAndAddStays) {
  Builder b = net();
  ValueId x = b.relu("r1", b.avg_pool("p", b.images(), Window::square(3, 1, 1), true));
  x = b.relu("r2", b.add("a", x, conv(b, "c", x)));
  EXPECT_EQ(summary(fuse(finish(b, x))), with_tail({"avg_pool p", "relu r1", "conv2d c", "add a", "relu r2"}));
}

TEST(Fuse, MaxPoolTakesItsRelu) {
  Builder b = net();
  const ValueId x = b.relu("r", b.max_pool("p", b.images(), Window::square(3, 1, 1)));
  const Graph fused = fuse(finish(b, x));
  EXPECT_EQ(summary(fused), with_tail({"max_pool p"}));
  EXPECT_TRUE(std::get<PoolAttrs>(fused.ops[0].attrs).relu);
}

TEST(Fuse, ParametersAndShapesStay) {
  const job::Model model{.name = "resnet50", .classes = 10, .image_size = 64};
  const Graph graph = model::build(model, 2, 0.0), fused = fuse(graph);
  EXPECT_EQ(fused.params.size(), graph.params.size());
  EXPECT_EQ(fused.trainable_elements(), graph.trainable_elements());
  for (const Op& op : fused.ops) {
    EXPECT_NE(op.kind, OpKind::Relu) << op.name;
    EXPECT_NE(op.kind, OpKind::Add) << op.name;
  }
  int with_residual = 0;
  for (const Op& op : fused.ops) {
    if (const auto* norm = std::get_if<BatchNormAttrs>(&op.attrs)) with_residual += norm->residual;
  }
  EXPECT_EQ(with_residual, 16) << "one for each block";
}

}  // namespace
}  // namespace millrace::graph
