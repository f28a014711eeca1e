#include "millrace/model/model.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/families.h"

namespace millrace::model {
namespace {

using Family = std::function<graph::ValueId(graph::Builder&, const job::Model&)>;

const std::vector<std::pair<std::string, Family>>& families() {
  using graph::Builder;
  static const std::vector<std::pair<std::string, Family>> all{
      {"alexnet",
       [](Builder& b, const job::Model& m) {
         return alexnet(b, m, {64, 6, 4096, true});
       }},
      {"alexnet_small",
       [](Builder& b, const job::Model& m) {
         return alexnet(b, m, {8, 2, 64, false});
       }},
      {"vgg16", [](Builder& b, const job::Model& m) { return vgg16(b, m, false); }},
      {"vgg16_bn", [](Builder& b, const job::Model& m) { return vgg16(b, m, true); }},
      {"resnet18",
       [](Builder& b, const job::Model& m) {
         return resnet(b, m, {{2, 2, 2, 2}, 64, false, true});
       }},
      {"resnet34",
       [](Builder& b, const job::Model& m) {
         return resnet(b, m, {{3, 4, 6, 3}, 64, false, true});
       }},
      {"resnet50",
       [](Builder& b, const job::Model& m) {
         return resnet(b, m, {{3, 4, 6, 3}, 64, true, true});
       }},
      {"resnet_small",
       [](Builder& b, const job::Model& m) {
         return resnet(b, m, {{1, 1, 1}, 16, false, false});
       }},
      {"vit_s_16",
       [](Builder& b, const job::Model& m) {
         return vit(b, m, {384, 12, 6, 1536});
       }},
      {"vit_b_16",
       [](Builder& b, const job::Model& m) {
         return vit(b, m, {768, 12, 12, 3072});
       }},
      {"vit_l_16",
       [](Builder& b, const job::Model& m) {
         return vit(b, m, {1024, 24, 16, 4096});
       }},
      {"bert_base",
       [](Builder& b, const job::Model& m) {
         return bert(b, m, {768, 12, 12, 3072});
       }},
      {"bert_large",
       [](Builder& b, const job::Model& m) {
         return bert(b, m, {1024, 24, 16, 4096});
       }},
      {"gpt2",
       [](Builder& b, const job::Model& m) {
         return gpt2(b, m, {768, 12, 12, 3072});
       }},
      {"gpt2_medium",
       [](Builder& b, const job::Model& m) {
         return gpt2(b, m, {1024, 24, 16, 4096});
       }},
      {"gpt2_large",
       [](Builder& b, const job::Model& m) {
         return gpt2(b, m, {1280, 36, 20, 5120});
       }},
      {"gpt2_xl",
       [](Builder& b, const job::Model& m) {
         return gpt2(b, m, {1600, 48, 25, 6400});
       }},
      {"bag_of_tokens", bag_of_tokens},
  };
  return all;
}

}  // namespace

TransformerShape shape_of(const job::Model& model, const TransformerShape& usual) {
  const auto or_usual = [](int asked, int value) { return asked > 0 ? asked : value; };
  const TransformerShape shape{or_usual(model.width, usual.width), or_usual(model.layers, usual.layers),
                               or_usual(model.heads, usual.heads), or_usual(model.mlp, usual.mlp)};
  if (shape.width % shape.heads != 0) {
    fail_input("model.heads: {} heads do not divide a width of {}; write model.heads: {}", shape.heads, shape.width,
               std::gcd(shape.heads, shape.width));
  }
  return shape;
}

void require_places(const job::Model& model, int places) {
  if (model.tokens <= places) return;
  fail_input("model.tokens is {} and {} has {} places; write model.tokens: {} or less", model.tokens, model.name,
             places, places);
}

double dropout_of(const job::Model& model, double usual) { return model.dropout < 0 ? usual : model.dropout; }

graph::Init kaiming_normal_fan_out(int out_channels, int kernel) {
  return {graph::Init::Kind::Normal, std::sqrt(2.0 / (static_cast<double>(out_channels) * kernel * kernel))};
}

graph::Init torch_default(int64_t fan_in) {
  return {graph::Init::Kind::Uniform, 1.0 / std::sqrt(static_cast<double>(fan_in))};
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, family] : families()) all.push_back(name);
    return all;
  }();
  return names;
}

graph::Graph build(const job::Model& model, int64_t batch, double label_smoothing, DType dtype) {
  for (const auto& [name, family] : families()) {
    if (name != model.name) continue;
    graph::Builder builder =
        job::reads_tokens(model)
            ? graph::Builder::over_tokens(name, batch, job::token_planes(model), model.tokens, dtype)
            : graph::Builder(name, batch, model.channels, model.image_size, model.image_size, dtype);
    const graph::ValueId logits = family(builder, model);
    builder.softmax_cross_entropy("loss", logits, label_smoothing);
    return std::move(builder).finish();
  }
  fail_input("model.name \"{}\" is not known; write one of {}", model.name, fmt::join(model_names(), ", "));
}

DType value_type(job::Precision precision) {
  switch (precision) {
    case job::Precision::Fp32:
    case job::Precision::Tf32: return DType::F32;
    case job::Precision::Fp16: return DType::F16;
    case job::Precision::Bf16: return DType::BF16;
  }
  return DType::F32;
}

graph::Graph training_graph(const job::Job& job, int64_t rows) {
  graph::Graph graph = graph::fuse(build(job.model, rows, job.loss.label_smoothing, value_type(job.precision)));
  const int layers = graph::num_layers(graph);
  if (job.model.frozen > layers) {
    fail_input("model.frozen is {} and {} has {} layers before its last; write {} or less", job.model.frozen,
               graph.name, layers, layers);
  }
  graph::freeze(graph, job.model.frozen);
  return graph;
}

graph::UpdateRule update_rule(const job::Job& job) {
  const job::Optimizer& optimizer = job.optimizer;
  graph::UpdateRule rule;
  rule.clips = optimizer.clip_norm > 0;
  rule.may_unfreeze = job.elastic.guard > 0;
  rule.watches = job.elastic.freeze == job::Freeze::Gradient;
  switch (optimizer.kind) {
    case job::Algorithm::Sgd:
      rule.step = graph::OpKind::SgdStep;
      rule.velocity = optimizer.momentum > 0;
      break;
    case job::Algorithm::AdamW:
      rule.step = graph::OpKind::AdamStep;
      rule.second_moment = true;
      break;
    case job::Algorithm::Lamb:
      rule.step = graph::OpKind::LambStep;
      rule.second_moment = true;
      break;
  }
  return rule;
}

}  // namespace millrace::model
