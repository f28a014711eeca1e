#include "millrace/runtime/session.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "graph/program_runner.h"
#include "millrace/plan/stage_memory.h"
#include "millrace/runtime/profiling.h"
#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

using graph::Graph;
using testing::AllOf;
using testing::HasSubstr;

class SessionTest : public EachBackend {};
EACH_BACKEND(SessionTest);

TEST_P(SessionTest, MicrobatchesDoNotChangeTheLosses) {
  constexpr int64_t kBatch = 8;
  for (int64_t samples : {8, 7, 5}) {  // at 5 of 8 the last micro-batch is empty, the one before it cut
    std::vector<double> whole;
    for (int microbatches : {1, 2, 4}) {
      const Graph graph = small_network(kBatch / microbatches);
      Session session(graph, *backend_, {.microbatches = microbatches, .evaluates = false, .seed = 3});
      session.load(state::initial_state(graph, 1));
      const auto losses = train(session, graph, microbatches, {.steps = 6, .samples = samples});
      if (microbatches == 1) whole = losses;
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], whole[i], 1e-6 * whole[i]) << microbatches << " micro-batches, step " << i;
      }
    }
    EXPECT_NE(whole.front(), whole.back());
  }
}

TEST_P(SessionTest, TheSameSeedGivesTheSameBits) {
  const Graph graph = small_network(4);
  auto run = [&](uint64_t seed) {
    Session session(graph, *backend_, {.evaluates = false, .seed = seed});
    session.load(state::initial_state(graph, 1));
    train(session, graph, 1, {.steps = 4, .samples = 4});
    return stored(session);
  };
  const state::State first = run(7);
  EXPECT_TRUE(first == run(7));
  EXPECT_FALSE(first == run(8)) << "dropout follows the seed";
}

TEST_P(SessionTest, ResidualNetworksRepeatBitForBit) {
  const Graph graph = residual_network(4);
  auto run = [&](uint64_t seed) {
    Session session(graph, *backend_, {.evaluates = false});
    session.load(state::initial_state(graph, seed));
    train(session, graph, 1, {.steps = 2, .samples = 4});
    return stored(session);
  };
  const state::State first = run(1);
  EXPECT_TRUE(first == run(1));
  EXPECT_FALSE(first == run(2));
}

TEST_P(SessionTest, WhatIsLoadedIsStored) {
  for (const Graph& graph : {small_network(2), residual_network(2)}) {
    state::State state = state::initial_state(graph, 5);
    for (const graph::Param& param : graph.params) {
      state.updates[param.name] = 7;
      if (!param.trainable()) {
        for (float& value : state.params[param.name].data) value += 0.25f;
        continue;
      }
      state::Tensor velocity = state.params[param.name];
      for (size_t i = 0; i < velocity.data.size(); ++i) velocity.data[i] = static_cast<float>(i) - 0.5f;
      state.velocity[param.name] = velocity;
    }
    Session session(graph, *backend_, {.evaluates = false});
    session.load(state);
    EXPECT_TRUE(stored(session) == state);
  }
}

TEST_P(SessionTest, AStoredStateContinuesTheRun) {
  const Graph graph = residual_network(4);
  Session whole(graph, *backend_, {.evaluates = false});
  whole.load(state::initial_state(graph, 1));
  train(whole, graph, 1, {.steps = 4, .samples = 4});

  Session first(graph, *backend_, {.evaluates = false}), second(graph, *backend_, {.evaluates = false});
  first.load(state::initial_state(graph, 1));
  train(first, graph, 1, {.steps = 2, .samples = 4});
  second.load(stored(first));
  train(second, graph, 1, {.steps = 2, .samples = 4, .first_step = 2});
  EXPECT_TRUE(stored(second) == stored(whole));
}

TEST_P(SessionTest, RefusesAStateThatLacksAParameter) {
  const Graph graph = small_network(2);
  state::State state = state::initial_state(graph, 1);
  state.params.erase("c2.bias");
  Session session(graph, *backend_, {.evaluates = false});
  EXPECT_THAT([&] { session.load(state); }, testing::ThrowsMessage<std::runtime_error>(HasSubstr("c2.bias")));
}

// Gradients are the velocity after a first step.
TEST_P(SessionTest, PaddedRowsChangeNoGradient) {
  auto after_one_step = [&](int64_t batch) {
    const Graph graph = residual_network(batch);
    Session session(graph, *backend_, {.evaluates = false});
    session.load(state::initial_state(graph, 1));
    const double loss = train(session, graph, 1, {.steps = 1, .samples = 3})[0];
    return std::pair(loss, stored(session));
  };
  const auto [exact_loss, exact] = after_one_step(3);
  const auto [padded_loss, padded] = after_one_step(5);
  EXPECT_NEAR(padded_loss, exact_loss, 1e-6 * exact_loss);
  for (const auto& [name, gradient] : exact.velocity) {
    EXPECT_GT(norm(gradient.data), 0) << name;
    EXPECT_LE(distance(gradient.data, padded.velocity.at(name).data), 1e-5 * norm(gradient.data)) << name;
  }
  for (const auto& [name, param] : exact.params) {
    EXPECT_LE(distance(param.data, padded.params.at(name).data), 1e-5 * (norm(param.data) + 1e-3)) << name;
  }
}

TEST_P(SessionTest, EvaluationChangesNothingAndDropsNothing) {
  const Graph graph = small_network(4, 0.9);
  Session session(graph, *backend_, {.seed = 1}), other(graph, *backend_, {.seed = 2});
  for (Session* s : {&session, &other}) {
    s->load(state::initial_state(graph, 1));
    for (int64_t row = 0; row < 4; ++row) put_sample(*s, graph, row, row);
  }
  const state::State before = stored(session);
  const Metrics four = session.evaluate(4);
  EXPECT_EQ(four.rows, 4);
  EXPECT_TRUE(stored(session) == before);
  EXPECT_EQ(session.evaluate(4).loss_sum, four.loss_sum);
  EXPECT_EQ(other.evaluate(4).loss_sum, four.loss_sum) << "the seed moves evaluation";
  const Metrics three = session.evaluate(3);
  EXPECT_EQ(three.rows, 3);
  EXPECT_LT(three.loss_sum, four.loss_sum);
}

TEST_P(SessionTest, EvaluationUsesTheRunningStatistics) {
  const Graph graph = residual_network(4);
  Session session(graph, *backend_, {});
  state::State state = state::initial_state(graph, 1);
  auto loss = [&] {
    session.load(state);
    for (int64_t row = 0; row < 4; ++row) put_sample(session, graph, row, row);
    return session.evaluate(4).loss();
  };
  const double before = loss();
  for (float& mean : state.params.at("bn1.running_mean").data) mean += 1;
  EXPECT_GT(std::abs(loss() - before), 1e-4);
}

TEST_P(SessionTest, EvaluationBetweenStepsDoesNotDisturbTraining) {
  const Graph graph = residual_network(4);
  auto run = [&](bool evaluate) {
    Session session(graph, *backend_, {});
    session.load(state::initial_state(graph, 1));
    for (int64_t step = 0; step < 3; ++step) {
      train(session, graph, 1, {.steps = 1, .samples = 4, .first_step = step});
      if (evaluate) session.evaluate(4);
    }
    return stored(session);
  };
  EXPECT_TRUE(run(false) == run(true));
}

TEST_P(SessionTest, MemoryItemsSumToThePlan) {
  const Graph graph = residual_network(4);
  const Session session(graph, *backend_, {.evaluates = false});
  size_t sum = 0;
  for (const memory::MemoryItem& item : session.memory().items) sum += item.bytes;
  EXPECT_EQ(sum, session.memory().planned_bytes);
  EXPECT_GT(session.memory().arena_bytes, 0u);
}

TEST_P(SessionTest, NodeTimesAreKeptOnlyWhenAsked) {
  const Graph graph = small_network(2);
  Session session(graph, *backend_, {.evaluates = false});
  session.load(state::initial_state(graph, 1));
  auto total = [&] {
    double sum = 0;
    for (const NodeTime& node : session.node_times()) sum += node.seconds;
    return sum;
  };
  train(session, graph, 1, {.samples = 2});
  EXPECT_EQ(total(), 0);
  session.time_nodes(true);
  train(session, graph, 1, {.samples = 2});
  EXPECT_GT(total(), 0);
  EXPECT_EQ(session.node_times().size(), session.training_program().nodes.size());
}

// The arena, with all it reuses and overwrites, computes what separate buffers do.
TEST(Session, TheArenaChangesNoBit) {
  const Graph graph = residual_network(3);
  const auto backend = make("reference");
  Session session(graph, *backend, {.evaluates = false});
  const state::State state = state::initial_state(graph, 1);
  session.load(state);

  graph::ProgramRunner<float> runner(graph, graph::training_program(graph, {}), kMomentum);
  for (graph::ParamId id = 0; id < static_cast<graph::ParamId>(graph.params.size()); ++id) {
    const auto role = graph.params[id].trainable() ? graph::BufferRole::Weight : graph::BufferRole::Statistic;
    const auto& data = state.params.at(graph.params[id].name).data;
    std::copy(data.begin(), data.end(), runner.values(runner.find(role, id)).begin());
  }
  for (int step = 0; step < 2; ++step) {
    train(session, graph, 1, {.steps = 1, .samples = 3, .lr = 0.05, .first_step = step});
    const auto images = runner.values(runner.program().features);
    std::copy(static_cast<float*>(session.features()), static_cast<float*>(session.features()) + images.size(),
              images.begin());
    std::copy(session.labels(), session.labels() + 3, runner.labels().begin());
    runner.run({.step = step, .rows = 3, .inverse_samples = 1.0 / 3, .learning_rate = 0.05f});
  }
  const state::State after = stored(session);
  for (graph::ParamId id = 0; id < static_cast<graph::ParamId>(graph.params.size()); ++id) {
    const auto role = graph.params[id].trainable() ? graph::BufferRole::Weight : graph::BufferRole::Statistic;
    const auto values = runner.values(runner.find(role, id));
    EXPECT_EQ(after.params.at(graph.params[id].name).data, std::vector<float>(values.begin(), values.end()))
        << graph.params[id].name;
  }
}

TEST(Session, CpuAndReferenceLearnTheSame) {
  const auto cpu = make("cpu"), reference = make("reference");
  if (!cpu) GTEST_SKIP() << "cpu is not built in";
  for (const Graph& graph : {small_network(4), residual_network(4)}) {
    std::vector<double> losses[2];
    state::State first[2];
    for (int i = 0; i < 2; ++i) {
      Session session(graph, i ? *cpu : *reference, {.evaluates = false});
      session.load(state::initial_state(graph, 1));
      losses[i] = train(session, graph, 1, {.steps = 1, .samples = 4, .lr = 0.01});
      first[i] = stored(session);
      const auto more = train(session, graph, 1, {.steps = 5, .samples = 4, .lr = 0.01, .first_step = 1});
      losses[i].insert(losses[i].end(), more.begin(), more.end());
    }
    for (size_t step = 0; step < losses[0].size(); ++step) {
      EXPECT_NEAR(losses[0][step], losses[1][step], 1e-4 * losses[0][step]) << graph.name << " step " << step;
    }
    for (const auto& [name, gradient] : first[0].velocity) {
      EXPECT_LE(distance(gradient.data, first[1].velocity.at(name).data), 1e-4 * norm(gradient.data)) << name;
    }
  }
}

struct Allocated : std::exception {};

// Counts what a session asks for; an allocation ends the test, so that nothing large is ever taken.
class Witness : public WrappedBackend {
 public:
  using WrappedBackend::WrappedBackend;
  backend::Kernel prepare(const backend::NodeView& view) override {
    ++prepared;
    return inner_.prepare(view);
  }
  void* allocate(size_t bytes) override {
    allocated = bytes;
    throw Allocated();
  }
  int prepared = 0;
  size_t allocated = 0;
};

std::string refusal(const Graph& graph, backend::Backend& backend, size_t limit) {
  try {
    const Session session(graph, backend, {.evaluates = false, .memory_limit = limit, .limit_reason = "this machine"});
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const Allocated&) {
    return "allocated";
  }
  return "accepted";
}

Graph vgg16(int64_t batch) {
  return graph::fuse(model::build({.name = "vgg16", .classes = 1000, .image_size = 224}, batch, 0.0));
}

// The number that follows `words` in the message; -1 if they are not there.
int64_t number_after(const std::string& message, const std::string& words) {
  const size_t at = message.find(words);
  return at == std::string::npos ? -1 : std::atoll(message.c_str() + at + words.size());
}

// "vgg16 needs 2950 MiB (activations 1428 + weights 528 + ... MiB), this machine has 2048 MiB; about 14 of 32 samples
// would fit: ..."
TEST(MemoryLimit, RefusalHoldsTheArithmetic) {
  const auto reference = make("reference");
  Witness witness(*reference);
  const std::string message = refusal(vgg16(32), witness, size_t{2} << 30);
  EXPECT_THAT(message,
              AllOf(HasSubstr("this machine has 2048 MiB"), HasSubstr("weights 528"), HasSubstr("optimizer 528"),
                    HasSubstr("smaller batch"), HasSubstr("parallel.microbatches")));
  int64_t sum = 0;
  int parts = 0;
  for (const char* part : {"(activations ", "+ weights ", "+ optimizer ", "+ weight gradients ", "+ inputs ",
                           "+ activation gradients ", "+ workspace ", "+ gaps between buffers "}) {
    if (number_after(message, part) < 0) continue;
    sum += number_after(message, part);
    ++parts;
  }
  EXPECT_GE(parts, 4) << message;
  EXPECT_EQ(std::count(message.begin(), message.end(), '+'), parts - 1)
      << "a part this test does not know: " << message;
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(number_after(message, "needs ")), parts) << message;
  EXPECT_EQ(witness.prepared, 0) << "kernels were measured for a plan that cannot run";
  EXPECT_EQ(witness.allocated, 0u);
}

// Memory does not grow in proportion: with fewer samples the peak moves to the large weight gradients.
TEST(MemoryLimit, TheBatchItAdvisesFits) {
  const auto reference = make("reference");
  Witness witness(*reference);
  const size_t limit = size_t{2} << 30;
  const std::string message = refusal(vgg16(32), witness, limit);
  const int64_t fits = number_after(message, "about ");
  ASSERT_GE(fits, 1) << message;
  EXPECT_EQ(refusal(vgg16(fits), witness, limit), "allocated");
  EXPECT_LE(witness.allocated, limit);
  EXPECT_THAT(refusal(vgg16(fits + 1), witness, limit), HasSubstr("needs"));
}

TEST(MemoryLimit, CountsWhatLoadingTakes) {
  const auto reference = make("reference");
  const Graph graph = small_network(4);
  const size_t planned = Session(graph, *reference, {.evaluates = false}).memory().planned_bytes;
  SessionOptions options{.microbatches = 1, .evaluates = false, .limit_reason = "this machine"};
  options.loader_bytes = size_t{3} << 20;
  options.memory_limit = planned + options.loader_bytes;
  EXPECT_NO_THROW(Session(graph, *reference, options));
  --options.memory_limit;
  EXPECT_THAT([&] { Session(graph, *reference, options); },
              testing::ThrowsMessage<std::invalid_argument>(HasSubstr("loading ahead 3")));
}

TEST(MemoryLimit, SaysWhenNotEvenOneSampleFits) {
  const auto reference = make("reference");
  Witness witness(*reference);
  EXPECT_THAT(refusal(vgg16(1), witness, size_t{1} << 30), HasSubstr("not even one sample"));
  EXPECT_EQ(witness.allocated, 0u);
}

TEST(MemoryLimit, IsExactToTheByte) {
  const auto reference = make("reference");
  const Graph graph = small_network(4);
  const size_t planned = Session(graph, *reference, {.evaluates = false}).memory().planned_bytes;
  EXPECT_EQ(refusal(graph, *reference, planned), "accepted");
  EXPECT_THAT(refusal(graph, *reference, planned - 1), HasSubstr("small needs"));
  Witness witness(*reference);
  EXPECT_EQ(refusal(graph, witness, 0), "allocated") << "0 is no limit";
  EXPECT_EQ(witness.allocated, planned) << "one block, and no more than was planned";
}

// Workspace is known only when kernels are prepared: it counts too.
TEST(MemoryLimit, CountsTheWorkspace) {
  const auto cpu = make("cpu");
  if (!cpu) GTEST_SKIP() << "cpu is not built in";
  const Graph graph = residual_network(4);
  const size_t planned = Session(graph, *cpu, {.evaluates = false}).memory().planned_bytes;
  Witness witness(*cpu);
  EXPECT_THAT(refusal(graph, witness, planned - 1), HasSubstr("resnet_small needs"));
  EXPECT_EQ(witness.allocated, 0u);
}

TEST(SessionMemory, ResNet50LeavesFewGaps) {
  const auto backend = make("cpu");
  if (!backend) GTEST_SKIP() << "cpu is not built in";
  const job::Model model{.name = "resnet50", .classes = 1000, .image_size = 224};
  const Session session(graph::fuse(model::build(model, 2, 0.0)), *backend, {.evaluates = false});
  const MemoryReport& memory = session.memory();
  EXPECT_LE(memory.arena_floor_bytes, memory.arena_bytes);
  EXPECT_LE(static_cast<double>(memory.arena_bytes), 1.05 * static_cast<double>(memory.arena_floor_bytes));
}

// The planner lays out as a session does, from the model alone and the workspace of a profile.
TEST(SessionMemory, IsWhatThePlannerSays) {
  const auto backend = make("cpu");
  if (!backend) GTEST_SKIP() << "cpu is not built in";
  for (const char* name : {"alexnet", "resnet18", "vgg16_bn"}) {
    const job::Model model{.name = name, .classes = 100, .image_size = 96};
    const graph::Graph graph = graph::fuse(model::build(model, 4, 0.0));
    const Session whole(graph, *backend, {.evaluates = false});
    const profile::Profile profile = describe_operators(whole);
    for (const memory::Copies& copies : {memory::Copies{1, 1, 1}, memory::Copies{3, 2, 2}}) {
      for (int stage : {0, 1}) {
        SessionOptions options;
        options.stage = {{0, static_cast<graph::OpId>(graph.ops.size() / 2)}, stage};
        options.copies = copies;
        const Session session(graph, *backend, options);
        const plan::StageMemory predicted = plan::stage_memory(
            graph, profile, {{.microbatches = 1, .keeps_gradients = false, .stage = options.stage}, copies, true});
        const auto planned = static_cast<double>(session.memory().planned_bytes);
        EXPECT_NEAR(predicted.total(), planned, 0.05 * planned) << name << " stage " << stage;
        const auto state = static_cast<double>(session.state_bytes());
        EXPECT_NEAR(predicted.state, state, 0.05 * state) << name << " stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::runtime
