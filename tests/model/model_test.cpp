#include "millrace/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"

namespace millrace::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

graph::Graph build_224(const std::string& name, int64_t batch = 1) {
  return build({.name = name, .classes = 1000, .image_size = 224}, batch, 0.0);
}

double total_flops(const graph::Graph& graph) {
  double sum = 0;
  for (const graph::Op& op : graph.ops) sum += forward_flops(graph, op);
  return sum;
}

// The job's table of keys stands before the models and cannot ask them.
TEST(Model, NamesAreThoseThatAJobMaySay) { EXPECT_EQ(job::find_field("model.name")->choices, model_names()); }

// torchvision's counts.
TEST(Model, ParameterCountsAreTorchvisions) {
  const std::map<std::string, int64_t> counts{{"alexnet", 61'100'840},   {"vgg16", 138'357'544},
                                              {"vgg16_bn", 138'365'992}, {"resnet18", 11'689'512},
                                              {"resnet34", 21'797'672},  {"resnet50", 25'557'032}};
  for (const auto& [name, count] : counts) EXPECT_EQ(build_224(name).trainable_elements(), count) << name;
}

// Those of Hugging Face's ViTForImageClassification and BertForSequenceClassification.
TEST(Model, ParameterCountsOfTransformersAreHuggingFaces) {
  EXPECT_EQ(build_224("vit_s_16").trainable_elements(), 22'050'664);
  EXPECT_EQ(build_224("vit_b_16").trainable_elements(), 86'567'656);
  EXPECT_EQ(build_224("vit_l_16").trainable_elements(), 304'326'632);
  const auto bert = [](const std::string& name) { return build({.name = name, .classes = 2}, 1, 0.0); };
  EXPECT_EQ(bert("bert_base").trainable_elements(), 109'483'778);
  EXPECT_EQ(bert("bert_large").trainable_elements(), 335'143'938);
  EXPECT_EQ(build_224("gpt2").trainable_elements(), 124'439'808);
  EXPECT_EQ(build_224("gpt2_medium").trainable_elements(), 354'823'168);
  EXPECT_EQ(build_224("gpt2_large").trainable_elements(), 774'030'080);
  EXPECT_EQ(build_224("gpt2_xl").trainable_elements(), 1'557'611'200);
}

TEST(Model, TransformersHaveTheShapeThatIsAskedFor) {
  const graph::Graph small = build(
      {.name = "vit_b_16", .classes = 5, .image_size = 12, .width = 24, .layers = 2, .heads = 3, .mlp = 40, .patch = 4},
      2, 0.0);
  std::map<std::string, Shape> shapes;
  for (const graph::Param& param : small.params) shapes[param.name] = param.shape;
  EXPECT_EQ(shapes.at("vit.embeddings.position_embeddings"), (Shape{10, 24}));
  EXPECT_EQ(shapes.at("vit.embeddings.cls_token"), (Shape{24}));
  EXPECT_EQ(shapes.at("vit.encoder.layer.1.attention.attention.qkv.weight"), (Shape{72, 24}));
  EXPECT_EQ(shapes.at("vit.encoder.layer.1.intermediate.dense.weight"), (Shape{40, 24}));
  EXPECT_FALSE(shapes.contains("vit.encoder.layer.2.layernorm_before.weight"));
  EXPECT_THAT([] { build({.name = "vit_b_16", .heads = 5}, 1, 0.0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("model.heads: 5 heads do not divide a width of 768")));
  EXPECT_THAT([] { build({.name = "vit_b_16", .image_size = 100}, 1, 0.0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("multiple of the patch")));
}

TEST(Model, ForwardFlopsAreThePapers) {
  EXPECT_NEAR(total_flops(build_224("resnet50")), 8.2e9, 0.05e9);
  EXPECT_NEAR(total_flops(build_224("vgg16")), 30.9e9, 0.2e9);
  EXPECT_NEAR(total_flops(build_224("alexnet")), 1.43e9, 0.02e9);
  EXPECT_NEAR(total_flops(build_224("vit_b_16")), 35.1e9, 0.2e9);
  EXPECT_EQ(total_flops(build_224("resnet50", 4)), 4 * total_flops(build_224("resnet50")));
}

TEST(Model, NamesAndShapesAreTorchvisions) {
  const std::map<std::string, std::vector<std::pair<std::string, Shape>>> params{
      {"alexnet",
       {{"features.0.weight", {64, 3, 11, 11}},
        {"features.10.bias", {256}},
        {"classifier.1.weight", {4096, 9216}},
        {"classifier.6.bias", {1000}}}},
      {"vgg16", {{"features.28.weight", {512, 512, 3, 3}}, {"classifier.0.weight", {4096, 25088}}}},
      {"vgg16_bn",
       {{"features.0.weight", {64, 3, 3, 3}},
        {"features.1.running_var", {64}},
        {"features.40.weight", {512, 512, 3, 3}},
        {"features.41.bias", {512}},
        {"classifier.3.bias", {4096}}}},
      {"resnet18", {{"layer1.0.conv2.weight", {64, 64, 3, 3}}, {"layer4.0.downsample.0.weight", {512, 256, 1, 1}}}},
      {"resnet34", {{"layer3.5.bn2.weight", {256}}, {"fc.weight", {1000, 512}}}},
      {"resnet50",
       {{"conv1.weight", {64, 3, 7, 7}},
        {"bn1.running_mean", {64}},
        {"layer1.0.downsample.0.weight", {256, 64, 1, 1}},
        {"layer2.3.conv3.weight", {512, 128, 1, 1}},
        {"layer4.2.bn3.bias", {2048}},
        {"fc.weight", {1000, 2048}},
        {"fc.bias", {1000}}}}};
  for (const auto& [name, expected] : params) {
    const graph::Graph graph = build_224(name);
    for (const auto& [param, shape] : expected) {
      const auto found = std::find_if(graph.params.begin(), graph.params.end(),
                                      [&, wanted = param](const graph::Param& p) { return p.name == wanted; });
      ASSERT_NE(found, graph.params.end()) << name << " " << param;
      EXPECT_EQ(found->shape, shape) << name << " " << param;
    }
  }
}

TEST(Model, NamesAreUnique) {
  for (const std::string& name : model_names()) {
    std::map<std::string, int> params, ops;
    const graph::Graph graph = build({.name = name, .classes = 10, .image_size = 64}, 1, 0.0);
    for (const graph::Param& param : graph.params) EXPECT_EQ(++params[param.name], 1) << name << " " << param.name;
    for (const graph::Op& op : graph.ops) EXPECT_EQ(++ops[op.name], 1) << name << " " << op.name;
  }
}

TEST(Model, TheStrideOfABottleneckStandsOnItsSecondConvolution) {
  const graph::Graph graph = build_224("resnet50");
  for (const graph::Op& op : graph.ops) {
    const auto* conv = std::get_if<graph::Conv2dAttrs>(&op.attrs);
    if (conv && op.name.rfind("layer2.0.conv", 0) == 0) {
      EXPECT_EQ(conv->window.stride_h, op.name == "layer2.0.conv2" ? 2 : 1) << op.name;
    }
  }
}

TEST(Model, LogitsHaveTheClassesAsked) {
  for (const std::string& name : model_names()) {
    const graph::Graph graph = build({.name = name, .classes = 17, .image_size = 64, .channels = 1}, 3, 0.1);
    const bool gpt = name.starts_with("gpt2");  // a language model has a class for each token, everywhere
    EXPECT_EQ(graph.values[graph.logits].shape, (gpt ? Shape{3, 128, 50257} : Shape{3, 17})) << name;
    EXPECT_EQ(graph.values[graph.labels].shape, (gpt ? Shape{3, 128} : Shape{3})) << name;
    const Shape features = name.starts_with("bert")         ? Shape{3, 2, 128}
                           : name == "bag_of_tokens" || gpt ? Shape{3, 128}
                                                            : Shape{3, 1, 64, 64};
    EXPECT_EQ(graph.values[graph.features].shape, features) << name;
    EXPECT_EQ(std::get<graph::LossAttrs>(graph.ops.back().attrs).label_smoothing, 0.1) << name;
  }
}

TEST(Model, DropoutStandsWhereItIsAskedFor) {
  auto dropouts = [](const std::string& name, double probability) {
    int count = 0;
    const job::Model model{.name = name, .classes = 10, .image_size = 64, .dropout = probability};
    for (const graph::Op& op : build(model, 1, 0.0).ops) count += op.kind == graph::OpKind::Dropout;
    return count;
  };
  for (const char* name : {"alexnet", "vgg16", "vgg16_bn"}) {
    EXPECT_EQ(dropouts(name, 0.5), 2) << name;
    EXPECT_EQ(dropouts(name, 0.0), 0) << name;
  }
  EXPECT_EQ(dropouts("resnet50", 0.5), 0);
}

TEST(Model, RefusesAnImageTooSmallNamingTheLayer) {
  auto refusal = [](const std::string& name, int size) {
    return [=] { build({.name = name, .classes = 10, .image_size = size}, 1, 0.0); };
  };
  // 63 is the least AlexNet takes, 32 the least VGG16 does.
  EXPECT_NO_THROW(refusal("alexnet", 63)());
  EXPECT_THAT(refusal("alexnet", 62), ThrowsMessage<std::invalid_argument>(AllOf(
                                          HasSubstr("alexnet"), HasSubstr("features.12"), HasSubstr("2x2 input"))));
  EXPECT_THAT(refusal("alexnet", 6), ThrowsMessage<std::invalid_argument>(
                                         AllOf(HasSubstr("features.0"), HasSubstr("11x11"), HasSubstr("6x6"))));
  EXPECT_NO_THROW(refusal("vgg16", 32)());
  EXPECT_THAT(refusal("vgg16", 31), ThrowsMessage<std::invalid_argument>(
                                        AllOf(HasSubstr("vgg16"), HasSubstr("features.30"), HasSubstr("1x1 input"))));
  EXPECT_THAT(refusal("vgg16_bn", 31), ThrowsMessage<std::invalid_argument>(HasSubstr("features.43")));
  EXPECT_NO_THROW(refusal("resnet50", 1)());
  EXPECT_THAT(refusal("resnet50", 0), ThrowsMessage<std::invalid_argument>(HasSubstr("1x3x0x0")));
}

TEST(Model, RefusesMoreTokensThanPlaces) {
  for (const auto& [name, places] : {std::pair{"bert_base", 512}, std::pair{"gpt2", 1024}}) {
    job::Model model{.name = name, .width = 8, .layers = 1, .heads = 2, .mlp = 8, .vocabulary = 10, .tokens = places};
    EXPECT_NO_THROW(build(model, 1, 0)) << name;
    ++model.tokens;
    EXPECT_THAT([&] { build(model, 1, 0); },
                testing::ThrowsMessage<std::invalid_argument>(
                    testing::HasSubstr(fmt::format("has {0} places; write model.tokens: {0} or less", places))));
  }
}

TEST(Model, RefusesAnUnknownNameAndListsTheKnown) {
  EXPECT_THAT([] { build({.name = "resnet51"}, 1, 0.0); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("\"resnet51\""), HasSubstr("resnet50"), HasSubstr("vgg16"))));
}

}  // namespace
}  // namespace millrace::model
