// Whole models against PyTorch: tests/parity/golden/ holds what it computed in double from numbers that the rule below
// makes again, so nothing of PyTorch is needed here. tests/parity/torch_parity.py and torch_transformers.py wrote the
// files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

using graph::ParamRole;

constexpr double kLossTolerance = 1e-4;      // relative, at each of the steps
constexpr double kGradientTolerance = 1e-3;  // of the gradient's norm
constexpr double kLogitTolerance = 1e-4;

// offset + scale * (2 u - 1): see filled() in tests/parity/counter_random.py.
struct Rule {
  double offset, scale;
};

std::vector<float> filled(const std::string& name, int64_t elements, const Rule& rule) {
  const RandomStream random(RandomStream::mix(1234, hash_name(name)), 0, 0);
  std::vector<float> values(static_cast<size_t>(elements));
#pragma omp parallel for
  for (int64_t block = 0; block < (elements + 3) / 4; ++block) {
    const RandomBlock words = random.at(static_cast<uint64_t>(block));
    for (int64_t k = 0; k < std::min<int64_t>(4, elements - 4 * block); ++k) {
      values[4 * block + k] = static_cast<float>(rule.offset + rule.scale * (2.0 * uniform(words[k]) - 1.0));
    }
  }
  return values;
}

Rule rule_of(const graph::Param& param) {
  switch (param.role) {
    case ParamRole::Weight: return {0, 1.0 / std::sqrt(static_cast<double>(param.shape.elements() / param.shape[0]))};
    case ParamRole::Bias: return {0, 0.1};
    case ParamRole::NormScale: return {1, 0.1};
    case ParamRole::NormShift: return {2, 0.1};
    case ParamRole::RunningMean: return {0, 0};
    case ParamRole::RunningVariance: return {1, 0};
  }
  return {};
}

struct Case {
  const char* model;
  backend::Convolution convolution;
};

class Golden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto file =
        std::filesystem::path(MILLRACE_SOURCE_DIR) / "tests/parity/golden" / (std::string(GetParam().model) + ".json");
    golden_ = nlohmann::json::parse(std::ifstream(file));
    const std::string name = GetParam().model;
    model_ = {.name = name == "bert_span" ? "bert_base" : name,
              .classes = golden_.value("classes", 1000),
              .image_size = golden_.value("image", 224),
              .dropout = 0,
              .width = golden_.value("width", 0),
              .layers = golden_.value("layers", 0),
              .heads = golden_.value("heads_of_attention", 0),
              .mlp = golden_.value("mlp", 0),
              .patch = golden_.value("patch", 16),
              .vocabulary = golden_.value("vocabulary", 30522),
              .tokens = golden_.value("tokens", 128),
              .head = name == "bert_span" ? job::Head::Span : job::Head::Classes};
    backend_ = make("cpu", {.momentum = golden_.at("momentum")}, GetParam().convolution);
    if (!backend_) GTEST_SKIP() << "cpu is not built in";
  }

  bool uses_adam() const { return golden_.value("optimizer", "sgd") == "adamw"; }
  backend::OptimizerOptions optimizer() const {
    if (!uses_adam()) return {.momentum = golden_.at("momentum")};
    return {.beta1 = golden_.at("beta1"),
            .beta2 = golden_.at("beta2"),
            .epsilon = golden_.at("epsilon"),
            .weight_decay = golden_.at("weight_decay"),
            .clip_norm = golden_.at("clip_norm")};
  }

  // The first values of two tensors: where these differ, the rule does, not the training.
  void expect_head(const std::string& name, const std::vector<float>& values) {
    if (!golden_.at("heads").contains(name)) return;
    ++heads_;
    const auto head = golden_.at("heads").at(name).get<std::vector<double>>();
    for (size_t i = 0; i < head.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(head[i])) << name;
  }

  void load(Session& session, const graph::Graph& graph) {
    state::State state;
    for (const graph::Param& param : graph.params) {
      state.params[param.name] = {param.shape, filled(param.name, param.shape.elements(), rule_of(param))};
      expect_head(param.name, state.params[param.name].data);
    }
    session.load(state);
    const Shape& features = graph.values[graph.features].shape;
    if (job::reads_tokens(model_)) {
      ++heads_;  // there are no images
      fill_tokens(features, static_cast<int32_t*>(session.features()));
    } else {
      const auto images = filled("__images__", features.elements(), {0, 1});
      expect_head("__images__", images);
      std::copy(images.begin(), images.end(), static_cast<float*>(session.features()));
    }
    fill_labels(graph, session.labels());
  }

  // As labels_of() in tests/parity/torch_transformers.py.
  void fill_labels(const graph::Graph& graph, int32_t* to) const {
    const int64_t length = model_.tokens;
    for (int64_t n = 0; n < graph.batch(); ++n) {
      if (job::is_gpt(model_)) {
        for (int64_t i = 0; i < length; ++i) *to++ = token(n, i + 1);
      } else if (model_.head == job::Head::Span) {
        *to++ = static_cast<int32_t>(n % length);
        *to++ = static_cast<int32_t>((2 * n + 3) % length);
      } else {
        *to++ = static_cast<int32_t>(n % model_.classes);
      }
    }
  }

  // As token() and tokens_of() there: ids, then segments where the model reads them.
  int32_t token(int64_t n, int64_t i) const {
    return static_cast<int32_t>(1 + (7 * n + 3 * i * i + i) % (model_.vocabulary - 1));
  }
  void fill_tokens(const Shape& shape, int32_t* to) const {
    const int64_t length = shape.width(), planes = job::token_planes(model_);
    const bool some_are_shorter = golden_.contains("classes");
    for (int64_t n = 0; n < shape[0]; ++n, to += planes * length) {
      for (int64_t i = 0; i < length; ++i) {
        to[i] = !some_are_shorter || i < length - n ? token(n, i) : -1;
        if (planes > 1) to[length + i] = i >= 5 ? 1 : 0;
      }
    }
  }

  // By norm and by the projection on a random direction. Gradients are the velocity after a first step.
  void expect_gradients(const state::State& state) {
    const auto& gradients = golden_.at("gradients");
    EXPECT_EQ(gradients.size(), state.velocity.size());
    for (const auto& [name, gradient] : state.velocity) {
      ASSERT_TRUE(gradients.contains(name)) << name;
      const nlohmann::json& digest = gradients.at(name);
      const auto direction = filled("dot." + name, gradient.shape.elements(), {0, 1});
      double dot = 0;
      for (size_t i = 0; i < direction.size(); ++i) dot += double{gradient.data[i]} * direction[i];
      const double allowed = kGradientTolerance * digest.at("scale").get<double>();
      EXPECT_NEAR(norm(gradient.data), digest.at("norm").get<double>(), allowed) << name;
      EXPECT_NEAR(dot, digest.at("dot").get<double>(), allowed) << name;
    }
  }

  // The first of them, by their own size.
  void expect_logits(Session& session, int64_t batch) {
    session.evaluate(batch);
    std::vector<float> logits;
    session.read_logits(0, logits);
    const auto expected = golden_.at("logits").get<std::vector<double>>();
    ASSERT_LE(expected.size(), logits.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(logits[i], expected[i], kLogitTolerance) << i;
  }

  nlohmann::json golden_;
  job::Model model_;
  std::unique_ptr<backend::Backend> backend_;
  int heads_ = 0;
};

TEST_P(Golden, LossesAndGradientsAreTorchs) {
  const int64_t batch = golden_.at("batch");
  const graph::Graph graph = graph::fuse(model::build(model_, batch, 0.0));
  const auto step = [&](Session& session, int64_t number) {
    return session.train_step(number, batch, golden_.at("lr").get<double>(), [&](int) { return batch; });
  };
  {
    Session first(graph, *backend_, {.evaluates = golden_.contains("logits")});
    load(first, graph);
    ASSERT_EQ(heads_, 2);
    if (golden_.contains("logits")) expect_logits(first, batch);
    step(first, 0);
    expect_gradients(stored(first));
    if (HasFailure()) return;
  }
  const auto backend = make("cpu", optimizer(), GetParam().convolution);
  const graph::UpdateRule rule =
      uses_adam() ? graph::UpdateRule{graph::OpKind::AdamStep, true, true, true} : graph::UpdateRule{};
  Session session(graph, *backend, {.rule = rule, .evaluates = false});
  load(session, graph);
  const auto expected = golden_.at("losses").get<std::vector<double>>();
  ASSERT_EQ(expected.size(), golden_.at("steps").get<size_t>());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double loss = step(session, static_cast<int64_t>(i)).loss();
    worst = std::max(worst, std::abs(loss - expected[i]) / expected[i]);
    EXPECT_NEAR(loss, expected[i], kLossTolerance * expected[i]) << "step " << i;
    if (HasFailure()) return;
  }
  RecordProperty("worst_loss_error", std::to_string(worst));
}

// Winograd where it exists, forced, stays within the same tolerances.
using backend::Convolution;
INSTANTIATE_TEST_SUITE_P(, Golden,
                         testing::Values(Case{"alexnet", Convolution::Direct}, Case{"vgg16", Convolution::Direct},
                                         Case{"vgg16_bn", Convolution::Direct}, Case{"resnet18", Convolution::Direct},
                                         Case{"resnet50", Convolution::Direct}, Case{"resnet18", Convolution::Winograd},
                                         Case{"resnet50", Convolution::Winograd}, Case{"vit_b_16", Convolution::Direct},
                                         Case{"bert_base", Convolution::Direct}, Case{"bert_span", Convolution::Direct},
                                         Case{"gpt2", Convolution::Direct}),
                         [](const auto& test) {
                           const bool winograd = test.param.convolution == Convolution::Winograd;
                           return std::string(test.param.model) + (winograd ? "_winograd" : "");
                         });

}  // namespace
}  // namespace millrace::runtime
