// What the session tests share: backends that may not be built in, a small network, samples that depend on their
// number alone, and a run over them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/reference/reference_backend.h"
#include "millrace/base/random.h"
#include "millrace/graph/builder.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/runtime/session.h"

namespace millrace::runtime {

constexpr backend::OptimizerOptions kMomentum{.momentum = 0.9f};

// "cpu" or "reference"; empty where it is not built in.
inline std::unique_ptr<backend::Backend> make(const std::string& name, const backend::OptimizerOptions& sgd = kMomentum,
                                              backend::Convolution convolution = backend::Convolution::Direct) {
  if (name == "reference") return backend::make_reference_backend(sgd);
  try {
    return backend::make_cpu_backend({.threads = 2, .convolution = convolution}, sgd);
  } catch (const std::invalid_argument&) {
    return nullptr;
  }
}

// Every test over each backend.
class EachBackend : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    backend_ = make(GetParam());
    if (!backend_) GTEST_SKIP() << GetParam() << " is not built in";
  }
  std::unique_ptr<backend::Backend> backend_;
};
#define EACH_BACKEND(suite) \
  INSTANTIATE_TEST_SUITE_P(, suite, testing::Values("cpu", "reference"), [](const auto& i) { return i.param; })

// Convolutions, both pools, dropout and linear layers, without batch norm: a batch may be cut anywhere.
inline graph::Graph small_network(int64_t batch, double dropout = 0.3) {
  using graph::Window;
  graph::Builder b("small", batch, 3, 12, 12);
  const graph::Init init{graph::Init::Kind::Uniform, 0.2};
  graph::ValueId x =
      b.relu("r1", b.conv("c1", b.images(), {.out_channels = 8, .window = Window::square(3, 1, 1)}, init));
  x = b.max_pool("p1", x, Window::square(2, 2));
  x = b.relu("r2", b.conv("c2", x, {.out_channels = 16, .window = Window::square(3, 1, 1)}, init));
  x = b.flatten("f", b.avg_pool("p2", x, Window::square(2, 2)));
  x = b.dropout("d", b.relu("r3", b.linear("l1", x, {.out_features = 32}, init)), dropout);
  b.softmax_cross_entropy("loss", b.linear("l2", x, {.out_features = 10}, init), 0.1);
  return graph::fuse(std::move(b).finish());
}

inline graph::Graph residual_network(int64_t batch) {
  const job::Model model{.name = "resnet_small", .classes = 10, .image_size = 16};
  return graph::fuse(model::build(model, batch, 0.0));
}

// Sample `number` into row `row`.
inline void put_sample(Session& session, const graph::Graph& graph, int64_t number, int64_t row) {
  const int64_t elements = graph.values[graph.features].shape.elements() / graph.batch();
  const RandomStream random(77, 0, static_cast<uint64_t>(number));
  float* image = static_cast<float*>(session.features()) + row * elements;
  for (int64_t i = 0; i < elements; ++i) {
    image[i] = 2 * uniform(random.at(static_cast<uint64_t>(i) / 4)[i % 4]) - 1;
  }
  session.labels()[row] = static_cast<int32_t>(number % 10);
}

struct Run {
  int steps = 1;
  int64_t samples = 0;  // of each step
  double lr = 0.05;
  int64_t first_step = 0;
};

// Losses of each step. Rows beyond the samples hold what must not matter.
inline std::vector<double> train(Session& session, const graph::Graph& graph, int microbatches, const Run& run) {
  std::vector<double> losses;
  for (int64_t step = run.first_step; step < run.first_step + run.steps; ++step) {
    const Metrics metrics = session.train_step(step, run.samples, run.lr, [&](int m) {
      const int64_t first = m * graph.batch(), rows = std::clamp<int64_t>(run.samples - first, 0, graph.batch());
      EXPECT_LT(m, microbatches);
      for (int64_t row = 0; row < graph.batch(); ++row) {
        put_sample(session, graph, row < rows ? step * run.samples + first + row : 1'000'000 + row, row);
      }
      return rows;
    });
    EXPECT_EQ(metrics.rows, static_cast<double>(run.samples));
    losses.push_back(metrics.loss());
  }
  return losses;
}

inline state::State stored(const Session& session) {
  state::State state;
  session.store(state);
  return state;
}

inline double norm(const std::vector<float>& values) {
  double squares = 0;
  for (float value : values) squares += double{value} * value;
  return std::sqrt(squares);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(squares);
}

// Hands everything on to another backend. Tests override what they watch.
class WrappedBackend : public backend::Backend {
 public:
  explicit WrappedBackend(backend::Backend& inner) : inner_(inner) {}
  std::string name() const override { return inner_.name(); }
  size_t bytes(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer) override {
    return inner_.bytes(graph, program, buffer);
  }
  backend::Kernel prepare(const backend::NodeView& view) override { return inner_.prepare(view); }
  void upload(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer,
              std::span<const float> plain, void* device) override {
    inner_.upload(graph, program, buffer, plain, device);
  }
  void download(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer, const void* device,
                std::span<float> plain) override {
    inner_.download(graph, program, buffer, device, plain);
  }
  void* allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory, size_t bytes) override { inner_.release(memory, bytes); }

 protected:
  backend::Backend& inner_;
};

}  // namespace millrace::runtime
