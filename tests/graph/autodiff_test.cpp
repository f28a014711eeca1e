// What training_program and evaluation_program put in which order; what it computes is gradient_test.cpp's.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/graph/builder.h"
#include "millrace/graph/fuse.h"
#include "millrace/graph/program.h"
#include "millrace/job/job.h"
#include "millrace/model/model.h"

namespace millrace::graph {
namespace {

Graph model_graph(const std::string& name, int size) {
  const job::Model model{.name = name, .classes = 10, .image_size = size};
  return fuse(model::build(model, 2, 0.1));
}
std::vector<Graph> all_models() {
  return {model_graph("alexnet", 64),  model_graph("vgg16", 32),    model_graph("vgg16_bn", 32),
          model_graph("resnet18", 32), model_graph("resnet50", 32), model_graph("resnet_small", 16)};
}

std::vector<size_t> nodes_of(const Program& program, OpId op, OpKind kind, Pass pass) {
  std::vector<size_t> found;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (node.op == op && node.kind == kind && node.pass == pass) found.push_back(i);
  }
  return found;
}

bool contains(const std::vector<BufferId>& ids, BufferId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

TEST(Autodiff, EveryParameterisedOperatorHasInputAndWeightGradient) {
  for (const Graph& graph : all_models()) {
    const Program program = training_program(graph, {});
    for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
      const Op& op = graph.ops[id];
      if (op.params.empty()) continue;
      const bool reads_images = op.inputs[0] == graph.features;
      const auto input = nodes_of(program, id, op.kind, Pass::InputGrad);
      const auto weight = nodes_of(program, id, op.kind, Pass::WeightGrad);
      ASSERT_EQ(weight.size(), 1u) << graph.name << " " << op.name;
      ASSERT_EQ(input.size(), reads_images ? 0u : 1u) << graph.name << " " << op.name;
      if (!reads_images) {
        EXPECT_LT(input[0], weight[0]) << "B is I, then W";
      }
    }
  }
}

TEST(Autodiff, NothingComputesTheGradientOfTheImages) {
  for (const Graph& graph : all_models()) {
    for (const Buffer& buffer : training_program(graph, {}).buffers) EXPECT_NE(buffer.name, "d images") << graph.name;
  }
}

TEST(Autodiff, EveryBufferIsWrittenOnceAndBeforeItIsRead) {
  for (const Graph& graph : all_models()) {
    for (int microbatches : {0, 1, 2}) {  // 0: evaluation
      const Program program =
          microbatches ? training_program(graph, {.microbatches = microbatches}) : evaluation_program(graph);
      std::set<BufferId> written;
      for (const Node& node : program.nodes) {
        for (BufferId id : node.reads) {
          if (!is_persistent(program.buffers[id].role)) {
            EXPECT_TRUE(written.count(id)) << node.name << " reads " << program.buffers[id].name;
          }
        }
        for (BufferId id : node.writes) {
          if (!is_persistent(program.buffers[id].role)) {
            EXPECT_TRUE(written.insert(id).second) << node.name << " writes again " << program.buffers[id].name;
          }
        }
      }
    }
  }
}

TEST(Autodiff, PlacesThatMayBeSharedHaveOneShapeAndType) {
  for (const Graph& graph : all_models()) {
    const Program program = training_program(graph, {});
    size_t pairs = 0;
    for (const Node& node : program.nodes) {
      for (const InPlace& pair : node.in_place) {
        const Buffer &from = program.buffers[node.reads.at(pair.read)],
                     &to = program.buffers[node.writes.at(pair.write)];
        EXPECT_EQ(from.shape, to.shape) << node.name;
        EXPECT_EQ(from.dtype, to.dtype) << node.name;
        ++pairs;
      }
    }
    EXPECT_GT(pairs, 0u);
  }
}

TEST(Autodiff, AnUpdateComesAfterTheLastReadOfTheWeight) {
  for (const Graph& graph : all_models()) {
    for (int microbatches : {1, 4}) {
      const Program program = training_program(graph, {.microbatches = microbatches});
      std::set<ParamId> updated;
      for (size_t i = 0; i < program.nodes.size(); ++i) {
        const Node& step = program.nodes[i];
        if (step.kind != OpKind::SgdStep) continue;
        EXPECT_EQ(step.pass, Pass::Update);
        const BufferId weight = step.writes[0];
        EXPECT_EQ(step.reads[0], weight);
        EXPECT_TRUE(updated.insert(program.buffers[weight].param).second) << step.name << " updated twice";
        for (size_t later = i + 1; later < program.nodes.size(); ++later) {
          EXPECT_FALSE(contains(program.nodes[later].reads, weight))
              << program.nodes[later].name << " reads " << program.buffers[weight].name << " after its update";
        }
      }
      size_t trainable = 0;
      for (const Param& param : graph.params) trainable += param.trainable();
      EXPECT_EQ(updated.size(), trainable);
    }
  }
}

TEST(Autodiff, OneMicrobatchUpdatesWhileBackwardRuns) {
  const Program program = training_program(model_graph("resnet18", 32), {});
  EXPECT_EQ(program.first_update, program.nodes.size());
  size_t first_step = program.nodes.size(), last_gradient = 0;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (program.nodes[i].kind == OpKind::SgdStep) first_step = std::min(first_step, i);
    if (program.nodes[i].pass == Pass::WeightGrad) last_gradient = i;
  }
  EXPECT_LT(first_step, last_gradient);
  for (const Buffer& buffer : program.buffers) EXPECT_NE(buffer.role, BufferRole::GradientSum);
}

TEST(Autodiff, SeveralMicrobatchesDeferEveryUpdate) {
  const Graph graph = model_graph("resnet18", 32);
  const Program program = training_program(graph, {.microbatches = 2});
  size_t trainable = 0;
  for (const Param& param : graph.params) trainable += param.trainable();
  EXPECT_EQ(program.nodes.size() - program.first_update, trainable);
  std::set<BufferId> summed;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    EXPECT_EQ(i >= program.first_update, node.kind == OpKind::SgdStep) << node.name;
    if (node.kind == OpKind::Accumulate) {
      EXPECT_EQ(program.buffers[node.writes[0]].role, BufferRole::GradientSum);
      EXPECT_EQ(node.reads[0], node.writes[0]);
      summed.insert(node.writes[0]);
    }
    if (node.kind == OpKind::SgdStep) {
      EXPECT_TRUE(summed.count(node.reads[1])) << node.name << " steps by a part only";
    }
  }
  EXPECT_EQ(summed.size(), trainable);
}

TEST(Autodiff, WithoutMomentumThereIsNoVelocity) {
  const Program program = training_program(model_graph("resnet_small", 16), {.rule = {.velocity = false}});
  for (const Buffer& buffer : program.buffers) EXPECT_NE(buffer.role, BufferRole::Velocity);
  for (const Node& node : program.nodes) {
    if (node.kind == OpKind::SgdStep) {
      EXPECT_EQ(node.reads.size(), 2u);
    }
  }
}

TEST(Autodiff, EvaluationSavesNothingAndChangesNothing) {
  for (const Graph& graph : all_models()) {
    const Program program = evaluation_program(graph);
    EXPECT_EQ(program.first_update, program.nodes.size());
    for (const Node& node : program.nodes) {
      EXPECT_EQ(node.pass, Pass::Evaluate) << node.name;
      EXPECT_NE(node.kind, OpKind::Dropout);
      EXPECT_EQ(node.writes.size(), 1u) << node.name << " saves something";
      const BufferRole role = program.buffers[node.writes[0]].role;
      EXPECT_TRUE(role == BufferRole::Activation || role == BufferRole::Metric) << node.name;
    }
    for (const Buffer& buffer : program.buffers) {
      EXPECT_TRUE(buffer.role == BufferRole::Activation || buffer.role == BufferRole::Input ||
                  buffer.role == BufferRole::Weight || buffer.role == BufferRole::Statistic ||
                  buffer.role == BufferRole::Metric)
          << buffer.name;
    }
  }
}

TEST(Autodiff, AFusedReluIsMaskedOnceForBothGradients) {
  Builder b("net", 2, 3, 6, 6);
  ValueId x = b.conv("first", b.images(), {.out_channels = 4, .window = {}}, {});
  x = b.relu("r", b.conv("second", x, {.out_channels = 4, .window = {}}, {}));
  b.softmax_cross_entropy("loss", b.linear("fc", b.flatten("f", x), {.out_features = 3}, {}), 0);
  const Program program = training_program(fuse(std::move(b).finish()), {});
  const auto mask = nodes_of(program, 1, OpKind::Relu, Pass::InputGrad);
  const auto input = nodes_of(program, 1, OpKind::Conv2d, Pass::InputGrad);
  const auto weight = nodes_of(program, 1, OpKind::Conv2d, Pass::WeightGrad);
  ASSERT_EQ(mask.size(), 1u);
  ASSERT_TRUE(input.size() == 1 && weight.size() == 1);
  const BufferId masked = program.nodes[mask[0]].writes[0];
  EXPECT_EQ(program.nodes[input[0]].reads[0], masked);
  EXPECT_EQ(program.nodes[weight[0]].reads[1], masked);
}

// Batch norm reads its output in backward only where the sign before the ReLU does not follow from its input.
TEST(Autodiff, BatchNormKeepsItsOutputOnlyForReluAfterResidual) {
  for (bool residual : {false, true}) {
    for (bool relu : {false, true}) {
      Builder b("net", 2, 3, 6, 6);
      const ValueId c = b.conv("c", b.images(), {.out_channels = 3, .window = {}}, {});
      ValueId x = b.batch_norm("n", c);
      if (residual) x = b.add("a", x, b.conv("s", b.images(), {.out_channels = 3, .window = {}}, {}));
      if (relu) x = b.relu("r", x);
      b.softmax_cross_entropy("loss", b.linear("fc", b.flatten("f", x), {.out_features = 3}, {}), 0);
      Graph graph = std::move(b).finish();
      // The shortcut has to stand before the norm to be taken in.
      if (residual) std::swap(graph.ops[1], graph.ops[2]);
      graph = fuse(graph);
      const Program program = training_program(graph, {});
      for (const Node& node : program.nodes) {
        if (node.kind != OpKind::BatchNorm || node.pass != Pass::InputGrad) continue;
        EXPECT_EQ(std::get<BatchNormAttrs>(node.attrs).residual, residual);
        EXPECT_EQ(node.reads.size(), residual && relu ? 6u : 5u);
        EXPECT_EQ(node.writes.size(), residual && relu ? 3u : 2u);
      }
    }
  }
}

TEST(Autodiff, ThreeReadersTakeTwoAdds) {
  Builder b("net", 2, 3, 6, 6);
  const ValueId x = b.conv("c", b.images(), {.out_channels = 4, .window = {}}, {});
  const ValueId sum = b.add("a2", b.add("a1", b.relu("r", x), b.max_pool("p", x, Window::square(3, 1, 1))),
                            b.avg_pool("q", x, Window::square(3, 1, 1)));
  b.softmax_cross_entropy("loss", b.linear("fc", b.flatten("f", sum), {.out_features = 3}, {}), 0);
  const Graph graph = std::move(b).finish();
  EXPECT_EQ(nodes_of(training_program(graph, {}), 0, OpKind::Add, Pass::InputGrad).size(), 2u);
}

Graph half_graph(DType dtype) {
  const job::Model model{.name = "resnet_small", .classes = 10, .image_size = 16};
  return fuse(model::build(model, 2, 0.1, dtype));
}

TEST(Autodiff, HalvesHaveMastersAndWideSums) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const Graph graph = half_graph(dtype);
    const Program program = training_program(graph, {.microbatches = 2});
    std::map<ParamId, int> masters;
    for (const Buffer& buffer : program.buffers) {
      const bool norm = buffer.param != kNone && graph.params[buffer.param].role != ParamRole::Weight &&
                        graph.params[buffer.param].role != ParamRole::Bias;
      switch (buffer.role) {
        case BufferRole::Master: ++masters[buffer.param]; [[fallthrough]];
        case BufferRole::Velocity:
        case BufferRole::GradientSum:
        case BufferRole::Statistic: EXPECT_EQ(buffer.dtype, DType::F32) << buffer.name; break;
        case BufferRole::Weight:
        case BufferRole::WeightGradient: EXPECT_EQ(buffer.dtype, norm ? DType::F32 : dtype) << buffer.name; break;
        default: break;
      }
    }
    int64_t trainable = 0;
    for (const Param& param : graph.params) trainable += param.trainable() ? 1 : 0;
    EXPECT_EQ(static_cast<int64_t>(masters.size()), trainable);
  }
}

TEST(Autodiff, OnlyF16ChecksBeforeItUpdates) {
  EXPECT_EQ(training_program(half_graph(DType::BF16), {}).agreement, kNone);
  EXPECT_EQ(training_program(half_graph(DType::F32), {}).agreement, kNone);
  const Program program = training_program(half_graph(DType::F16), {});
  ASSERT_NE(program.agreement, kNone);
  ASSERT_LT(program.first_check, program.first_step);
  std::set<BufferId> checked;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    EXPECT_EQ(node.kind == OpKind::CheckFinite, i >= program.first_check && i < program.first_step) << i;
    if (node.kind == OpKind::CheckFinite) checked.insert(node.reads[0]);
    if (node.kind != OpKind::SgdStep) continue;
    EXPECT_GE(i, program.first_step);
    EXPECT_TRUE(checked.contains(node.reads[1])) << node.name;
    EXPECT_TRUE(contains(node.reads, program.agreement)) << node.name;
  }
  EXPECT_EQ(program.nodes.back().kind, OpKind::AdjustScale);
}

Graph tied_graph(DType dtype) {
  Builder b = Builder::over_tokens("tied", 2, 5, dtype);
  ValueId x = b.embedding("table", b.tokens(), 0, 7, 4, {});
  b.begin_block();
  x = b.gelu("gelu", b.linear("middle", x, {.out_features = 4}, {}), false);
  b.begin_block();
  x = b.tanh("tanh", b.linear("second", x, {.out_features = 4}, {}));
  b.end_blocks();
  b.softmax_cross_entropy("loss", b.tied_linear("head", x, "table.weight"), 0);
  return std::move(b).finish();
}

TEST(Autodiff, AWeightWithTwoReadersHasOneBufferOneStepAndTwoGradients) {
  const Graph graph = tied_graph(DType::BF16);
  for (int microbatches : {1, 3}) {
    const Program program = training_program(graph, {.microbatches = microbatches});
    int weights = 0, steps = 0, gradients = 0, sums = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.param != 0) continue;
      weights += buffer.role == BufferRole::Weight;
      gradients += is_kept_gradient(buffer.role);
      if (is_kept_gradient(buffer.role)) {
        EXPECT_EQ(buffer.dtype, DType::F32);
      }
    }
    for (size_t i = 0; i < program.nodes.size(); ++i) {
      const Node& node = program.nodes[i];
      steps += is_step(node.kind) && program.buffers[node.writes[0]].param == 0;
      sums += node.kind == OpKind::Accumulate && node.pass == Pass::Update;
      EXPECT_EQ(node.kind == OpKind::Accumulate && node.pass == Pass::Update,
                i >= program.first_update && i < program.first_check);
    }
    EXPECT_EQ(weights, 1);
    EXPECT_EQ(steps, 1);
    EXPECT_EQ(gradients, 2);
    EXPECT_EQ(sums, 1);
    EXPECT_TRUE(program.tied.empty());
  }
  // On two stages each has its own, to be summed with the other's.
  const std::vector<OpId> first{0, 3};
  for (int stage : {0, 1}) {
    const Program program = training_program(graph, {.stage = {first, stage}});
    ASSERT_EQ(program.tied.size(), 1u);
    EXPECT_EQ(program.buffers[program.tied[0]].param, 0);
    EXPECT_EQ(program.first_update, program.first_check);
  }
}

TEST(Autodiff, ClippingCountsEachParameterOnOneStage) {
  const Graph graph = tied_graph(DType::F32);
  const std::vector<OpId> first{0, 3};
  std::map<ParamId, int> counted;
  for (int stage : {0, 1}) {
    const Program program = training_program(graph, {.rule = {.clips = true}, .stage = {first, stage}});
    ASSERT_NE(program.agreement, kNone);
    EXPECT_EQ(program.buffers[program.agreement].shape[0], kSquares + static_cast<int64_t>(graph.params.size()));
    EXPECT_EQ(program.nodes[program.first_step].kind, OpKind::ClipNorm);
    for (const Node& node : program.nodes) {
      if (node.kind != OpKind::SumSquares) continue;
      counted[program.buffers[node.reads[0]].param] += std::get<SquaresAttrs>(node.attrs).counts;
    }
  }
  EXPECT_EQ(counted.size(), graph.params.size());
  for (const auto& [param, times] : counted) EXPECT_EQ(times, 1) << graph.params[param].name;
}

TEST(Autodiff, BlocksAreMadeAgainWithoutTheirEnds) {
  const Graph graph = tied_graph(DType::F32);
  const Program program = training_program(graph, {.remakes_blocks = true});
  std::vector<std::string> again;
  for (size_t i = program.first_backward; i < program.first_update; ++i) {
    if (program.nodes[i].pass == Pass::Forward) again.push_back(program.nodes[i].name);
  }
  // gelu's backward reads its input alone, tanh's its output.
  EXPECT_EQ(again, (std::vector<std::string>{"second", "tanh", "middle"}));
}

TEST(Autodiff, AConvolutionSumsForTheBatchNormBehindIt) {
  const Style style{.sums_in_conv = true};
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const Graph graph = half_graph(dtype);
    const Program program = training_program(graph, {.style = style});
    for (const Node& node : program.nodes) {
      if (node.pass != Pass::Forward || node.kind != OpKind::BatchNorm) continue;
      const size_t own = std::get<BatchNormAttrs>(node.attrs).residual ? 6 : 5;
      ASSERT_EQ(node.reads.size(), own + (dtype == DType::F16 ? 1 : 0)) << node.name;
      if (dtype == DType::F16) {
        EXPECT_EQ(program.buffers[node.reads.back()].shape[0], 2);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::graph
