// Gradients of whole networks: what autodiff put together, run in double, against finite differences of the loss.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/program_runner.h"
#include "millrace/graph/builder.h"
#include "millrace/graph/fuse.h"
#include "millrace/job/job.h"
#include "millrace/model/model.h"

namespace millrace::graph {
namespace {

using backend::StepContext;

// Draws networks: the same for the same seed.
class Die {
 public:
  explicit Die(uint64_t seed) : random_(seed, 99, 0) {}
  int operator()(int faces) { return static_cast<int>(random_.at(next_++)[0] % static_cast<uint32_t>(faces)); }

 private:
  RandomStream random_;
  uint64_t next_ = 0;
};

// Operators over values of one shape, so that any two can be added and any value read again; every value is read.
Graph random_network(uint64_t seed) {
  Die die(seed);
  constexpr int kChannels = 3;
  Builder b("random", 3, 2, 5, 6, DType::F64);
  const Conv2dAttrs attrs{.out_channels = kChannels, .window = Window::square(3, 1, 1)};
  std::vector<ValueId> values{b.conv("stem", b.images(), attrs, {})};
  std::vector<int> readers{0};
  auto read = [&](int i) {
    ++readers[i];
    return values[i];
  };
  auto some = [&] {  // mostly of the last ones
    const int n = static_cast<int>(values.size());
    return n - 1 - die(std::min(n, 4));
  };
  for (int i = 0; i < 9; ++i) {
    const std::string name = "op" + std::to_string(i);
    ValueId made = kNone;
    switch (die(9)) {
      case 0: made = b.conv(name, read(some()), attrs, {}); break;
      case 1: {
        Conv2dAttrs grouped = attrs;
        grouped.groups = kChannels, grouped.bias = false;
        made = b.conv(name, read(some()), grouped, {});
        break;
      }
      case 2:
      case 3: made = b.batch_norm(name, read(some())); break;
      case 4: made = b.relu(name, read(some())); break;
      case 5: made = b.max_pool(name, read(some()), Window::square(3, 1, 1)); break;
      case 6: made = b.avg_pool(name, read(some()), Window::square(3, 1, 1), die(2) == 0); break;
      case 7: made = b.dropout(name, read(some()), 0.3); break;
      case 8: {
        const int first = some(), second = some();  // may be the same value
        made = b.add(name, read(first), read(second));
        break;
      }
    }
    values.push_back(made);
    readers.push_back(0);
  }
  ValueId x = kNone;
  for (size_t i = 0; i < values.size(); ++i) {
    if (readers[i] > 0) continue;
    x = x == kNone ? values[i] : b.add("join" + std::to_string(i), x, values[i]);
  }
  x = b.flatten("flat", b.adaptive_avg_pool("pool", b.relu("last", x), 2, 2));
  x = b.dropout("drop", b.relu("hidden.relu", b.linear("hidden", x, {.out_features = 5}, {})), 0.4);
  b.softmax_cross_entropy("loss", b.linear("fc", x, {.out_features = 4}, {}), die(2) * 0.1);
  return std::move(b).finish();
}

// A learning rate of zero: gradients without moving.
StepContext context_for(int64_t rows) {
  return {.seed = 5, .step = 2, .first_row = 0, .rows = rows, .inverse_samples = 1.0 / static_cast<double>(rows)};
}

// Every gradient at up to six places of each parameter.
void expect_matches_finite_differences(const Graph& graph, const StepContext& context, const Style& style = {}) {
  ProgramRunner<double> runner(graph, training_program(graph, {.style = style}));
  fill_randomly(graph, runner);
  runner.run(context);
  for (ParamId param = 0; param < static_cast<ParamId>(graph.params.size()); ++param) {
    if (!graph.params[param].trainable()) continue;
    const BufferId weight = runner.find(BufferRole::Weight, param);
    const BufferId gradient = runner.find(BufferRole::WeightGradient, param);
    ASSERT_NE(gradient, kNone);
    const std::vector<double> computed(runner.values(gradient).begin(), runner.values(gradient).end());
    const std::span<double> w = runner.values(weight);
    const size_t stride = std::max<size_t>(1, w.size() / 6);
    for (size_t i = 0; i < w.size(); i += stride) {
      constexpr double kStep = 1e-5;
      const double here = w[i];
      w[i] = here + kStep;
      const double above = runner.loss(context);
      w[i] = here - kStep;
      const double below = runner.loss(context);
      w[i] = here;
      const double numeric = (above - below) / (2 * kStep);
      EXPECT_NEAR(computed[i], numeric, 1e-7 + 1e-5 * std::abs(numeric)) << graph.params[param].name << "[" << i << "]";
    }
  }
}

// Largest difference of any gradient, against the largest of its parameter.
void expect_equal_gradients(const Graph& a, const Graph& b, const StepContext& context) {
  ASSERT_EQ(a.params.size(), b.params.size());
  ProgramRunner<double> first(a, training_program(a, {})), second(b, training_program(b, {}));
  fill_randomly(a, first);
  fill_randomly(b, second);
  first.run(context);
  second.run(context);
  for (ParamId param = 0; param < static_cast<ParamId>(a.params.size()); ++param) {
    if (!a.params[param].trainable()) continue;
    const auto x = first.values(first.find(BufferRole::WeightGradient, param));
    const auto y = second.values(second.find(BufferRole::WeightGradient, param));
    ASSERT_EQ(x.size(), y.size());
    double largest = 0;
    for (double value : x) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(x[i], y[i], 1e-10 * (1 + largest)) << a.params[param].name << "[" << i << "]";
    }
  }
}

TEST(WholeNetworkGradient, RandomNetworksMatchFiniteDifferences) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE("network " + std::to_string(seed));
    expect_matches_finite_differences(random_network(seed), context_for(seed % 2 ? 2 : 3));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(WholeNetworkGradient, FusedRandomNetworksMatchFiniteDifferences) {
  size_t fused_ops = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE("network " + std::to_string(seed));
    const Graph graph = random_network(seed), fused = fuse(graph);
    fused_ops += graph.ops.size() - fused.ops.size();
    expect_matches_finite_differences(fused, context_for(3));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(fused_ops, 30u);
}

TEST(WholeNetworkGradient, FusingChangesNoGradient) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("network " + std::to_string(seed));
    const Graph graph = random_network(seed);
    expect_equal_gradients(graph, fuse(graph), context_for(seed % 2 ? 2 : 3));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(WholeNetworkGradient, SmallResidualNetworkMatchesFiniteDifferences) {
  const job::Model model{.name = "resnet_small", .classes = 4, .image_size = 8, .channels = 2};
  const Graph graph = fuse(model::build(model, 2, 0.1, DType::F64));
  expect_matches_finite_differences(graph, context_for(2));
}

// Gradients that batch norm adds itself, and outputs that it makes once more.
TEST(WholeNetworkGradient, TheStyleOfGpusMatchesFiniteDifferences) {
  const Style style{.late_updates = true, .sums_in_norm = true, .sums_in_conv = true, .remakes_norm = true};
  const job::Model model{.name = "resnet_small", .classes = 4, .image_size = 8, .channels = 2};
  const Graph graph = fuse(model::build(model, 2, 0.1, DType::F64));
  size_t two_parts = 0, made_again = 0;
  for (const Node& node : training_program(graph, {.style = style}).nodes) {
    if (node.kind != OpKind::BatchNorm || node.pass != Pass::InputGrad) continue;
    two_parts += node.reads.size() > 6 ? 1 : 0;
    made_again += !std::get<BatchNormAttrs>(node.attrs).residual && node.writes.size() > 2 ? 1 : 0;
  }
  EXPECT_GT(two_parts, 0u);
  EXPECT_GT(made_again, 0u);
  expect_matches_finite_differences(graph, context_for(2), style);
  expect_matches_finite_differences(graph, context_for(1), style);
}

// A residual, a value read by three operators, and one added to itself.
TEST(WholeNetworkGradient, SharedValuesMatchFiniteDifferences) {
  Builder b("shared", 2, 2, 5, 5, DType::F64);
  const Conv2dAttrs attrs{.out_channels = 3, .window = Window::square(3, 1, 1)};
  const ValueId x = b.conv("stem", b.images(), attrs, {});
  const ValueId left = b.batch_norm("left", b.conv("left.conv", x, attrs, {}));
  const ValueId right = b.max_pool("right", x, Window::square(3, 1, 1));
  ValueId sum = b.relu("relu", b.add("add", left, x));
  sum = b.add("add3", b.add("add2", sum, right), sum);
  sum = b.add("twice", sum, sum);
  b.softmax_cross_entropy("loss", b.linear("fc", b.flatten("flat", sum), {.out_features = 3}, {}), 0);
  const Graph graph = std::move(b).finish();
  expect_matches_finite_differences(graph, context_for(2));
  expect_matches_finite_differences(fuse(graph), context_for(2));
}

// The sum over micro-batches is the gradient of the whole batch, each part weighted by its samples.
TEST(WholeNetworkGradient, MicrobatchesSumToTheWholeBatch) {
  auto build = [](int64_t batch) {
    Builder b("net", batch, 2, 5, 5, DType::F64);
    const ValueId x = b.relu("r", b.conv("c", b.images(), {.out_channels = 3, .window = Window::square(3)}, {}));
    b.softmax_cross_entropy("loss", b.linear("fc", b.dropout("d", b.flatten("f", x), 0.3), {.out_features = 3}, {}), 0);
    return std::move(b).finish();
  };
  const Graph whole = build(5), part = build(2);
  ProgramRunner<double> all(whole, training_program(whole, {}));
  fill_randomly(whole, all);
  all.run(context_for(5));

  ProgramRunner<double> parts(part, training_program(part, {.microbatches = 3}));
  fill_randomly(part, parts);
  for (int m = 0; m < 3; ++m) {
    StepContext context = context_for(5);
    context.first_row = 2 * m;
    context.rows = std::min<int64_t>(2, 5 - 2 * m);
    const auto from = all.values(all.program().features);
    const auto to = parts.values(parts.program().features);
    for (size_t i = 0; i < to.size(); ++i) {
      const size_t source = m * to.size() + i;
      to[i] = source < from.size() ? from[source] : 1e3;  // padding must not matter
    }
    for (int row = 0; row < 2; ++row) parts.labels()[row] = 2 * m + row < 5 ? all.labels()[2 * m + row] : 0;
    // Updates clear the sums, so they stay out.
    parts.run_part(context);
  }
  for (ParamId param = 0; param < static_cast<ParamId>(whole.params.size()); ++param) {
    const auto x = all.values(all.find(BufferRole::WeightGradient, param));
    const auto y = parts.values(parts.find(BufferRole::GradientSum, param));
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-12) << whole.params[param].name << "[" << i << "]";
  }
}

}  // namespace
}  // namespace millrace::graph
