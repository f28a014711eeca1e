#include "millrace/runtime/profiling.h"

#include <gmock/gmock.h>

#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

using profile::Operator;
using profile::Profile;

const Operator& named(const Profile& profile, const std::string& name) {
  for (const Operator& op : profile.operators) {
    if (op.name == name) return op;
  }
  throw std::out_of_range(name + " is not in the profile");
}

Profile described(const graph::Graph& graph) {
  const auto backend = make("reference");
  return describe_operators(Session(graph, *backend, {}));
}

TEST(Profiling, OperatorsAndEdgesAreTheFusedGraphs) {
  const graph::Graph graph = residual_network(4);
  const Profile profile = described(graph);
  ASSERT_EQ(profile.operators.size(), graph.ops.size());
  size_t reads = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    EXPECT_EQ(profile.operators[i].name, graph.ops[i].name);
    for (graph::ValueId input : graph.ops[i].inputs) reads += graph.producer(input) != graph::kNone;
  }
  EXPECT_EQ(profile.edges.size(), reads);
  for (const profile::Edge& edge : profile.edges) EXPECT_LT(edge.from, edge.to);
  EXPECT_EQ(profile.rows, 4);
}

TEST(Profiling, BytesAreThoseOfTheBuffers) {
  const Profile profile = described(small_network(4));
  // 4 x 8 x 12 x 12 floats. Its ReLU stands behind the pool, so nothing reads the output in backward.
  EXPECT_EQ(named(profile, "c1").output_bytes, 4 * 8 * 12 * 12 * 4);
  EXPECT_EQ(named(profile, "c1").kept_bytes, 0);
  EXPECT_EQ(named(profile, "c1").param_bytes, (8 * 3 * 9 + 8) * 4);
  // A pool keeps one byte an element to find its maximum; its output is what c2's weight gradient reads.
  EXPECT_EQ(named(profile, "p1").kept_bytes, 4 * 8 * 6 * 6 * (1 + 4));
  // The mask of c2's own ReLU is its output.
  EXPECT_EQ(named(profile, "c2").kept_bytes, named(profile, "c2").output_bytes);
  EXPECT_EQ(named(profile, "loss").output_bytes, 0);
  EXPECT_EQ(named(profile, "loss").kept_bytes, 2 * 4 * 4);
}

TEST(Profiling, KeptBytesOfAllOperatorsFitTheArena) {
  const graph::Graph graph = residual_network(4);
  const auto backend = make("reference");
  const Session session(graph, *backend, {});
  const Profile profile = describe_operators(session);
  int64_t kept = 0, params = 0;
  for (const Operator& op : profile.operators) {
    kept += op.kept_bytes;
    params += op.param_bytes;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LE(kept, static_cast<int64_t>(session.memory().arena_bytes));
  EXPECT_EQ(params, graph.trainable_elements() * 4);
}

TEST(Profiling, AlgorithmsAreGivenPerPass) {
  const Profile profile = described(small_network(4));
  EXPECT_EQ(named(profile, "c2").algorithm, "plain-loops plain-loops plain-loops");
  EXPECT_EQ(named(profile, "c1").algorithm, "plain-loops - plain-loops");
  EXPECT_EQ(named(profile, "p1").algorithm, "plain-loops plain-loops -");
}

TEST(Profiling, EveryPassThatRunsHasATime) {
  job::Job job;
  job.device = job::Device::Reference;
  job.batch = 8;
  job.parallel.microbatches = 2;
  job.model = {.name = "resnet_small", .classes = 4, .image_size = 4};
  ProfilingOptions options;
  options.repeats = 3;
  options.attempts = 1;
  const Profiled profiled = measure_profile(job, options, {});
  const Profile& profile = profiled.profile;
  EXPECT_EQ(profiled.attempts, 1);
  EXPECT_EQ(profile.rows, 4);
  EXPECT_EQ(profile.device, "reference");
  for (const Operator& op : profile.operators) {
    EXPECT_GT(op.forward.median, 0) << op.name;
    EXPECT_EQ(op.weight_grad.median > 0, op.param_bytes > 0) << op.name;
    EXPECT_EQ(op.update.median > 0, op.param_bytes > 0) << op.name;
    EXPECT_GE(op.forward.spread, 0) << op.name;
  }
  EXPECT_EQ(named(profile, "conv1").input_grad.median, 0);  // nobody needs the gradient of the images
  EXPECT_GT(profile.step_s, 0);
  EXPECT_GT(sum_s(profile), profile.step_s / 3);
  EXPECT_LT(sum_s(profile), profile.step_s * 3);
  EXPECT_EQ(profile::parse_profile(profile::to_json(profile), "p.json"), profile);

  options.rows = 2;
  EXPECT_EQ(measure_profile(job, options, {}).profile.rows, 2);
}

}  // namespace
}  // namespace millrace::runtime
