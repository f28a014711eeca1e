// A Graph unrolled into what a worker executes: typed buffers and an ordered list of nodes over them.
// Backward is two nodes per parameterised operator, InputGrad and WeightGrad, so that a schedule may place
// them apart.
//
// What each node reads and writes (brackets: only if the operator has it):
//
//   kind                 pass        reads                                       writes
//   Conv2d, Linear       Forward     x, w, [b]                                   y
//                        InputGrad   dy, w                                       dx
//                        WeightGrad  x, dy                                       dw, [db]
//   BatchNorm            Forward     x, scale, shift, mean, variance, [residual] y, saved, mean, variance
//                        Evaluate    x, scale, shift, mean, variance, [residual] y
//                        InputGrad   dy, x, scale, shift, saved, [y]             dx, dsums, [dresidual]
//                        WeightGrad  dsums                                       dscale, dshift
//   Relu                 Forward     x                                           y
//                        InputGrad   dy, y                                       dx
//   MaxPool              Forward     x                                           y, [argmax]
//                        InputGrad   dy, argmax                                  dx
//   AvgPool, Adaptive..  Forward     x                                           y
//   Flatten, Dropout     InputGrad   dy                                          dx
//   Add                  Forward     a, b                                        y
//   SoftmaxCrossEntropy  Forward     logits, labels                              metrics, [probabilities]
//                        InputGrad   probabilities, labels                       dlogits
//   Accumulate           Forward     total, part                                 total
//   SgdStep              Forward     w, dw, [velocity]                           w, [velocity]
//
// `saved` is mean then inverse standard deviation (2 x C); `dsums` is dscale then dshift (2 x C). BatchNorm's
// InputGrad reads y only when both residual and relu are on: otherwise the sign before the ReLU follows from x.
// A fused conv or linear (attrs.relu) has its mask as a separate Relu InputGrad node before both gradients.
// `metrics` holds kNumMetrics numbers, summed over the rows that are samples.
#pragma once

#include <string>
#include <vector>

#include "millrace/graph/graph.h"

namespace millrace::graph {

using BufferId = int;

enum class Pass { Forward, Evaluate, InputGrad, WeightGrad, Update };
const char* name_of(Pass pass);

enum class BufferRole {
  Input,       // written by the data source before each micro-batch
  Activation,  // forward values, and what forward saves for backward
  Gradient,    // gradients of values
  Weight,      // a parameter; lives as long as the session
  WeightGradient,
  GradientSum,  // a weight gradient summed over micro-batches; lives as long as the session
  Velocity,     // optimizer slot; lives as long as the session
  Statistic,    // running mean or variance; lives as long as the session
  Metric,
};
const char* name_of(BufferRole role);
constexpr bool is_persistent(BufferRole role) {
  return role == BufferRole::Input || role == BufferRole::Weight || role == BufferRole::GradientSum ||
         role == BufferRole::Velocity || role == BufferRole::Statistic || role == BufferRole::Metric;
}

enum Metric { kLossSum, kTop1, kTop5, kRows, kNumMetrics };

struct Buffer {
  std::string name;
  Shape shape;
  DType dtype = DType::F32;
  BufferRole role = BufferRole::Activation;
  ParamId param = kNone;  // of Weight, WeightGradient, GradientSum, Velocity and Statistic
};

// `writes[write]` may take the place of `reads[read]` if nothing reads that later.
struct InPlace {
  int write = 0;
  int read = 0;
};

struct Node {
  OpKind kind{};
  Pass pass = Pass::Forward;
  OpId op = kNone;
  Attrs attrs;
  std::string name;  // of the operator
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;
  std::vector<InPlace> in_place;
};

struct Program {
  std::vector<Buffer> buffers;
  std::vector<Node> nodes;
  // nodes[0, update) run once per micro-batch, nodes[update, end) once per step.
  size_t first_update = 0;
  BufferId images = kNone;
  BufferId labels = kNone;
  BufferId metrics = kNone;

  const Shape& read_shape(const Node& node, int i) const { return buffers[node.reads[i]].shape; }
  const Shape& write_shape(const Node& node, int i) const { return buffers[node.writes[i]].shape; }
};

struct TrainingOptions {
  int microbatches = 1;
  bool velocity = true;  // the optimizer keeps a momentum slot
};

// Forward, backward and update. With one micro-batch each parameter is updated as soon as its gradient is
// complete and its old value no longer needed, so that gradients are never all alive at once.
Program training_program(const Graph& graph, const TrainingOptions& options);

// Forward with running statistics and without dropout.
Program evaluation_program(const Graph& graph);

}  // namespace millrace::graph
