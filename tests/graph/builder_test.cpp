#include "millrace/graph/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace millrace::graph {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// A model called "net" over 2 images of 3 x 9 x 7.
Builder net() { return {"net", 2, 3, 9, 7}; }
ValueId conv(Builder& b, ValueId x, const Conv2dAttrs& attrs, const std::string& name = "c") {
  return b.conv(name, x, attrs, {});
}

template <typename Write, typename... Parts>
void expect_refused(Write write, Parts... parts) {
  EXPECT_THAT(
      [&] {
        Builder b = net();
        write(b);
      },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("net"), HasSubstr(parts)...)));
}

TEST(Builder, ConvolutionShapesFollowTheWindow) {
  Builder b = net();
  auto shape = [&](const Window& w) { return b.shape(conv(b, b.images(), {.out_channels = 8, .window = w})); };
  EXPECT_EQ(shape(Window::square(3)), (Shape{2, 8, 7, 5}));
  EXPECT_EQ(shape(Window::square(3, 1, 1)), (Shape{2, 8, 9, 7}));
  EXPECT_EQ(shape(Window::square(3, 2, 1)), (Shape{2, 8, 5, 4}));
  EXPECT_EQ(shape(Window::square(3, 1, 0, 2)), (Shape{2, 8, 5, 3}));
  EXPECT_EQ(shape({9, 1, 1, 3, 0, 0, 1, 1}), (Shape{2, 8, 1, 3}));
}

TEST(Builder, ParametersHaveTheLayersNameAndShape) {
  Builder b = net();
  ValueId x = conv(b, b.images(), {.out_channels = 8, .window = Window::square(3), .groups = 1}, "stem");
  x = conv(b, x, {.out_channels = 4, .window = Window::square(3), .groups = 2, .bias = false}, "grouped");
  x = b.batch_norm("norm", x, 0.0);
  x = b.linear("fc", b.flatten("flat", x), {.out_features = 10}, {});
  b.softmax_cross_entropy("loss", x, 0.1);
  const Graph graph = std::move(b).finish();

  std::vector<std::pair<std::string, Shape>> params;
  for (const Param& param : graph.params) params.emplace_back(param.name, param.shape);
  const std::vector<std::pair<std::string, Shape>> expected{{"stem.weight", {8, 3, 3, 3}},
                                                            {"stem.bias", {8}},
                                                            {"grouped.weight", {4, 4, 3, 3}},
                                                            {"norm.weight", {4}},
                                                            {"norm.bias", {4}},
                                                            {"norm.running_mean", {4}},
                                                            {"norm.running_var", {4}},
                                                            {"fc.weight", {10, 4 * 5 * 3}},
                                                            {"fc.bias", {10}}};
  EXPECT_EQ(params, expected);
  EXPECT_EQ(graph.trainable_elements(), 8 * 27 + 8 + 4 * 36 + 8 + 600 + 10) << "running statistics do not train";
  EXPECT_EQ(graph.params[3].init.scale, 0.0) << "the scale given";
  EXPECT_EQ(graph.params[6].init.scale, 1.0);
  EXPECT_EQ(graph.logits, x);
  EXPECT_EQ(graph.batch(), 2);
}

TEST(Builder, PoolingKeepsChannels) {
  Builder b = net();
  EXPECT_EQ(b.shape(b.max_pool("p", b.images(), Window::square(3, 2))), (Shape{2, 3, 4, 3}));
  EXPECT_EQ(b.shape(b.max_pool("p", b.images(), Window::square(3, 2, 1))), (Shape{2, 3, 5, 4}));
  EXPECT_EQ(b.shape(b.avg_pool("p", b.images(), Window::square(2))), (Shape{2, 3, 8, 6}));
  EXPECT_EQ(b.shape(b.adaptive_avg_pool("p", b.images(), 1, 1)), (Shape{2, 3, 1, 1}));
}

TEST(Builder, WhatDoesNothingIsLeftOut) {
  Builder b = net();
  EXPECT_EQ(b.adaptive_avg_pool("same size", b.images(), 9, 7), b.images());
  EXPECT_EQ(b.dropout("never", b.images(), 0.0), b.images());
  EXPECT_NE(b.dropout("sometimes", b.images(), 0.5), b.images());
}

TEST(Builder, RefusesAKernelThatDoesNotFit) {
  expect_refused(
      [](Builder& b) { conv(b, b.images(), {.out_channels = 8, .window = Window::square(11, 4, 1)}, "features.0"); },
      "features.0", "11x11", "9x7", "padding 1", "larger image");
  expect_refused(
      [](Builder& b) { conv(b, b.images(), {.out_channels = 8, .window = Window::square(3, 1, 0, 4)}, "wide"); },
      "wide", "3x3", "9x7");
}

TEST(Builder, RefusesAPoolThatDoesNotFit) {
  expect_refused([](Builder& b) { b.max_pool("features.12", b.images(), Window::square(8)); }, "features.12", "8x8",
                 "9x7");
  expect_refused([](Builder& b) { b.avg_pool("avg", b.images(), Window::square(8)); }, "avg", "8x8", "9x7");
}

TEST(Builder, RefusesAMaxPoolWhoseArgmaxIsNoByte) {
  expect_refused([](Builder&) { Builder("net", 1, 1, 99, 99).max_pool("vast", 0, Window::square(16)); }, "vast",
                 "16x16", "255");
}

TEST(Builder, RefusesGroupsThatDoNotDivideTheChannels) {
  expect_refused([](Builder& b) { conv(b, b.images(), {.out_channels = 4, .window = {}, .groups = 2}, "g"); },
                 "layer g", "2 groups", "3 input", "4 output");
  expect_refused([](Builder& b) { conv(b, b.images(), {.out_channels = 4, .window = {}, .groups = 3}, "g"); },
                 "3 groups");
  expect_refused([](Builder& b) { conv(b, b.images(), {.out_channels = 4, .window = {}, .groups = 0}, "g"); },
                 "0 groups");
}

TEST(Builder, RefusesAnAddOfDifferentShapes) {
  expect_refused(
      [](Builder& b) { b.add("layer1.0.add", b.images(), conv(b, b.images(), {.out_channels = 8, .window = {}})); },
      "layer1.0.add", "2x3x9x7", "2x8x9x7");
}

TEST(Builder, RefusesTheWrongNumberOfAxes) {
  expect_refused([](Builder& b) { b.linear("fc", b.images(), {.out_features = 3}, {}); }, "fc", "2 axes", "2x3x9x7");
  expect_refused([](Builder& b) { conv(b, b.flatten("f", b.images()), {.out_channels = 8, .window = {}}); }, "layer c",
                 "4 axes", "2x189");
  expect_refused([](Builder& b) { b.batch_norm("bn", b.flatten("f", b.images())); }, "bn", "4 axes");
  expect_refused([](Builder& b) { b.softmax_cross_entropy("loss", b.images(), 0); }, "loss", "2 axes");
}

TEST(Builder, RefusesAnEmptyInput) {
  EXPECT_THAT([] { Builder("net", 0, 3, 224, 224); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("net"), HasSubstr("0x3x224x224"))));
  EXPECT_THAT([] { Builder("net", 1, 3, 224, -1); }, ThrowsMessage<std::invalid_argument>(HasSubstr("1x3x224x-1")));
}

TEST(Graph, FlopsCountMultiplyAndAdd) {
  Builder b = net();
  conv(b, b.images(), {.out_channels = 8, .window = Window::square(3, 1, 1)});
  b.linear("fc", b.flatten("f", b.images()), {.out_features = 5}, {});
  const Graph graph = std::move(b).finish();
  EXPECT_EQ(forward_flops(graph, graph.ops[0]), 2.0 * 2 * 8 * 9 * 7 * 27);
  EXPECT_EQ(forward_flops(graph, graph.ops[1]), 0);
  EXPECT_EQ(forward_flops(graph, graph.ops[2]), 2.0 * 2 * 5 * 189);
}

}  // namespace
}  // namespace millrace::graph
