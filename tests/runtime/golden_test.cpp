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
    model_ = {.name = GetParam().model,
              .classes = golden_.at("classes"),
              .image_size = golden_.value("image", 224),
              .dropout = 0,
              .width = golden_.value("width", 0),
              .layers = golden_.value("layers", 0),
              .heads = golden_.value("heads_of_attention", 0),
              .mlp = golden_.value("mlp", 0),
              .patch = golden_.value("patch", 16),
              .vocabulary = golden_.value("vocabulary", 30522),
              .tokens = golden_.value("tokens", 128)};
    backend_ = make("cpu", {.momentum = golden_.at("momentum")}, GetParam().convolution);
    if (!backend_) GTEST_SKIP() << "cpu is not built in";
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
    for (int64_t i = 0; i < graph.batch(); ++i) session.labels()[i] = static_cast<int32_t>(i % model_.classes);
  }

  // As tokens_of() in tests/parity/torch_transformers.py: ids, then segments.
  void fill_tokens(const Shape& shape, int32_t* to) const {
    const int64_t length = shape[2];
    for (int64_t n = 0; n < shape[0]; ++n, to += 2 * length) {
      for (int64_t i = 0; i < length; ++i) {
        to[i] = i < length - n ? static_cast<int32_t>(1 + (7 * n + 3 * i * i + i) % (model_.vocabulary - 1)) : -1;
        to[length + i] = i >= 5 ? 1 : 0;
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

  nlohmann::json golden_;
  job::Model model_;
  std::unique_ptr<backend::Backend> backend_;
  int heads_ = 0;
};

TEST_P(Golden, LossesAndGradientsAreTorchs) {
  const int64_t batch = golden_.at("batch");
  const graph::Graph graph = graph::fuse(model::build(model_, batch, 0.0));
  Session session(graph, *backend_, {.evaluates = false});
  load(session, graph);
  ASSERT_EQ(heads_, 2);
  const auto expected = golden_.at("losses").get<std::vector<double>>();
  ASSERT_EQ(expected.size(), golden_.at("steps").get<size_t>());
  double worst = 0;
  for (size_t step = 0; step < expected.size(); ++step) {
    const Metrics metrics = session.train_step(static_cast<int64_t>(step), batch, golden_.at("lr").get<double>(),
                                               [&](int) { return batch; });
    worst = std::max(worst, std::abs(metrics.loss() - expected[step]) / expected[step]);
    EXPECT_NEAR(metrics.loss(), expected[step], kLossTolerance * expected[step]) << "step " << step;
    if (step == 0) expect_gradients(stored(session));
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
                                         Case{"bert_base", Convolution::Direct}),
                         [](const auto& test) {
                           const bool winograd = test.param.convolution == Convolution::Winograd;
                           return std::string(test.param.model) + (winograd ? "_winograd" : "");
                         });

}  // namespace
}  // namespace millrace::runtime
