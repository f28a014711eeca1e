// What torch makes of a few numbers, and LAMB restated element by element: the measure of every backend's optimizers.
#pragma once

#include "backend/node_harness.h"
#include "millrace/backend/optimizer.h"

namespace millrace::backend::harness {

inline void expect_each_near(const std::string& name, const std::vector<float>& want, const std::vector<float>& got,
                             double relative) {
  ASSERT_EQ(want.size(), got.size()) << name;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], relative * std::abs(want[i])) << name << ", element " << i;
  }
}

// One step after another, each on what the one before left. `gradients` has one for each step.
inline Plain run_steps(Backend& backend, const NodeSpec& spec, float learning_rate, Plain state,
                       const std::vector<std::vector<float>>& gradients) {
  const OneNode one = build(spec);
  for (size_t t = 0; t < gradients.size(); ++t) {
    state["dw"] = gradients[t];
    const StepContext context{.update = static_cast<int64_t>(t), .learning_rate = learning_rate};
    for (const auto& [name, values] : run_node(backend, one, context, state)) state[name] = values;
  }
  return state;
}

inline std::vector<float> golden_gradient(int step) {
  const auto t = static_cast<float>(step + 1);
  return {0.5f * t, 1 - 0.25f * t, 1e-3f * t, -2};
}

// Made by, with torch 1.13:
//   f = lambda x: torch.tensor(x).item()  # as f32
//   w = torch.nn.Parameter(torch.tensor([0.5, -1.25, 2.0, 0.0]))
//   o = torch.optim.AdamW([w], lr=f(0.01), betas=(f(0.9), f(0.999)), eps=f(1e-8), weight_decay=f(0.1))
//   for t in range(5):
//     w.grad = torch.tensor([0.5, -0.25, 1e-3, 0.0]) * (t + 1) + torch.tensor([0.0, 1.0, 0.0, -2.0])
//     o.step()
//     print(w.data)
//   print(o.state[w]['exp_avg'], o.state[w]['exp_avg_sq'])
constexpr OptimizerOptions kGoldenAdam{.beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .weight_decay = 0.1f};

inline void expect_torch_adamw(Backend& made_with_golden_options) {
  const std::vector<std::vector<float>> weights{{0.489500016f, -1.25874996f, 1.98800015f, 0.00999999978f},
                                                {0.479358703f, -1.26719475f, 1.97636044f, 0.0199900009f},
                                                {0.469299346f, -1.27486372f, 1.96480405f, 0.0299700107f},
                                                {0.459225953f, -1.28090894f, 1.95323515f, 0.0399400406f},
                                                {0.449094355f, -1.28419375f, 1.9416095f, 0.0499001034f}};
  const NodeSpec spec{.kind = OpKind::AdamStep, .pass = Pass::Update, .x = {4}};
  const std::vector<float> zeros(4, 0.0f);
  const Plain start{{"w", {0.5f, -1.25f, 2, 0}}, {"velocity", zeros}, {"second_moment", zeros}};
  std::vector<std::vector<float>> gradients;
  Plain after;
  for (int t = 0; t < 5; ++t) {
    gradients.push_back(golden_gradient(t));
    after = run_steps(made_with_golden_options, spec, 0.01f, start, gradients);
    expect_each_near("w after step " + std::to_string(t), weights[static_cast<size_t>(t)], after.at("w"), 1e-6);
  }
  expect_each_near("mean", {0.657205105f, 0.0809075087f, 0.00131441036f, -0.819020212f}, after.at("velocity"), 2e-6);
  expect_each_near("mean of squares", {0.0137373302f, 0.000934367243f, 5.49493251e-08f, 0.0199597832f},
                   after.at("second_moment"), 2e-6);
}

// Made by, with torch 1.13:
//   a = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]
//   a[0].grad, a[1].grad = torch.tensor([3., -4.]), torch.tensor([1., 2., 0.5])
//   print(torch.nn.utils.clip_grad_norm_(a, 2.5), a[0].grad, a[1].grad)  # 5.5, [1.36363614, ...
//   the same with a tenth of each: 0.55, gradients unchanged
constexpr float kGoldenClipNorm = 2.5f;

inline void expect_torch_clipping(Backend& made_with_golden_norm) {
  const OneNode clip = build({.kind = OpKind::ClipNorm, .pass = Pass::Update});
  Plain plain{{"agreement", std::vector<float>(graph::kSquares + 3, 0.0f)}};
  std::vector<float>& fields = plain.at("agreement");
  fields[graph::kSquares] = 3 * 3 + 4 * 4;
  fields[graph::kSquares + 2] = 1 + 4 + 0.25f;
  std::vector<float> got = run_node(made_with_golden_norm, clip, {}, plain).at("agreement");
  EXPECT_FLOAT_EQ(got[graph::kNorm], 5.5f);
  EXPECT_FLOAT_EQ(3 * got[graph::kClip], 1.36363614f);
  for (size_t i = graph::kSquares; i < got.size(); ++i) EXPECT_EQ(got[i], 0) << "for the next sum over stages";

  for (float& field : fields) field *= 0.01f;
  got = run_node(made_with_golden_norm, clip, {}, plain).at("agreement");
  EXPECT_FLOAT_EQ(got[graph::kNorm], 0.55f);
  EXPECT_EQ(got[graph::kClip], 1);

  fields[graph::kSquares + 1] = NAN;
  got = run_node(made_with_golden_norm, clip, {}, plain).at("agreement");
  EXPECT_TRUE(std::isnan(got[graph::kNorm])) << "a run that has diverged shows it";
  EXPECT_TRUE(std::isnan(got[graph::kClip]));
}

// Algorithm 2 of the paper in double, with apex's rule that what has no decay is not adapted.
struct LambInDouble {
  OptimizerOptions options;
  double rate, decay, clip = 1;
  std::vector<double> w, m, v;

  LambInDouble(const OptimizerOptions& with, double learning_rate, double weight_decay, const Plain& start)
      : options(with), rate(learning_rate), decay(weight_decay) {
    w = {start.at("w").begin(), start.at("w").end()};
    m = {start.at("velocity").begin(), start.at("velocity").end()};
    v = {start.at("second_moment").begin(), start.at("second_moment").end()};
  }
  void step(const std::vector<float>& gradient, int t) {
    const double b1 = options.beta1, b2 = options.beta2;
    std::vector<double> u(w.size());
    double weights = 0, directions = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = clip * gradient[i];
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(b1, t)), v_hat = v[i] / (1 - std::pow(b2, t));
      u[i] = m_hat / (std::sqrt(v_hat) + options.epsilon) + decay * w[i];
      weights += w[i] * w[i];
      directions += u[i] * u[i];
    }
    const double ratio = decay > 0 && weights > 0 && directions > 0 ? std::sqrt(weights / directions) : 1;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= rate * ratio * u[i];
  }
};

constexpr OptimizerOptions kLamb{
    .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-6f, .weight_decay = 0.05f, .decay_bias = false};

// Three steps, with and without decay, and from weights that are all zero.
inline void expect_lamb(Backend& made_with_lamb) {
  const std::vector<std::vector<float>> gradients{{0.5f, -1, 0, 3, 1e-4f}, {-1, -1, 0, 0.25f, 2e-4f}, {2, 1, 0, 1, 0}};
  for (const graph::ParamRole role : {graph::ParamRole::Weight, graph::ParamRole::Bias}) {
    for (const float size : {0.0f, 1.0f}) {
      const NodeSpec spec{.kind = OpKind::LambStep, .pass = Pass::Update, .x = {5}, .role = role};
      Plain start{{"w", {0.5f, -0.25f, 1, 2, -3}}};
      for (float& value : start.at("w")) value *= size;
      start["velocity"] = start["second_moment"] = std::vector<float>(5, 0.0f);
      const bool decays = role == graph::ParamRole::Weight;
      LambInDouble expected(kLamb, 0.125, decays ? static_cast<double>(kLamb.weight_decay) : 0, start);
      for (size_t t = 0; t < gradients.size(); ++t) expected.step(gradients[t], static_cast<int>(t) + 1);
      const Plain after = run_steps(made_with_lamb, spec, 0.125f, start, gradients);
      SCOPED_TRACE(testing::Message() << "decays " << decays << ", weights times " << size);
      expect_each_near("w", {expected.w.begin(), expected.w.end()}, after.at("w"), 1e-5);
      expect_each_near("mean", {expected.m.begin(), expected.m.end()}, after.at("velocity"), 2e-6);
      expect_each_near("mean of squares", {expected.v.begin(), expected.v.end()}, after.at("second_moment"), 2e-6);
    }
  }
}

}  // namespace millrace::backend::harness
