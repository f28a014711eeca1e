// A Graph unrolled into what a worker executes: typed buffers and an ordered list of nodes over them.
// Backward is two nodes per parameterised operator, InputGrad and WeightGrad, so that a schedule may place
// them apart.
//
// What each node reads and writes (brackets: only if the operator has it):
//
//   kind                 pass        reads                                       writes
//   Conv2d, Linear       Forward     x, w, [b]                                   y, [sums]
//                        InputGrad   dy, w                                       dx
//                        WeightGrad  x, dy                                       dw, [db]
//   EmbeddingBag         Forward     w, tokens                                   y
//                        WeightGrad  dy, tokens                                  dw
//   Embedding            Forward     w, tokens                                   y
//                        WeightGrad  dy, tokens                                  dw
//   Positions            Forward     x, w                                        y
//                        WeightGrad  dy                                          dw
//   ImageTokens          Forward     x, w                                        y
//                        InputGrad   dy                                          dx
//                        WeightGrad  dy                                          dw
//   SelectToken          Forward     x                                           y
//                        InputGrad   dy                                          dx
//   SpanLogits           Forward     x, tokens                                   y
//                        InputGrad   dy, tokens                                  dx
//   LayerNorm            Forward     x, scale, shift                             y, [saved]
//                        InputGrad   dy, x, scale, saved                         dx
//                        WeightGrad  dy, x, saved                                dscale, dshift
//   Gelu                 Forward     x                                           y
//                        InputGrad   dy, x                                       dx
//   Tanh                 Forward     x                                           y
//                        InputGrad   dy, y                                       dx
//   Attention            Forward     qkv, [tokens]                               y, [saved]
//                        InputGrad   dy, qkv, y, saved, [tokens]                 dqkv
//   BatchNorm            Forward     x, scale, shift, mean, variance,            y, saved, mean, variance
//                                    [residual], [sums]
//                        Evaluate    x, scale, shift, mean, variance, [residual] y
//                        InputGrad   dy, x, scale, shift, saved, [y, [dy2]]      dx, dsums, [dresidual] or [y]
//                        WeightGrad  dsums                                       dscale, dshift
//   Relu                 Forward     x                                           y
//                        InputGrad   dy, y                                       dx
//   MaxPool              Forward     x                                           y, [argmax]
//                        InputGrad   dy, argmax                                  dx
//   AvgPool, Adaptive..  Forward     x                                           y
//   Flatten, Dropout     InputGrad   dy                                          dx
//   Add                  Forward     a, b                                        y
//   SoftmaxCrossEntropy  Forward     logits, labels                              metrics, [saved]
//                        InputGrad   logits, labels, saved, [agreement]          dlogits
//   Accumulate           WeightGrad  total, part                                 total
//                        Update      total, part                                 total, part
//   CheckFinite          Update      dw, agreement                               agreement
//   SumSquares           Update      dw, agreement                               agreement
//   ClipNorm             Update      agreement, [watch]                          agreement, [watch]
//   SgdStep              Update      w, dw, [velocity], [master], [agreement]    w, [velocity], [master]
//   AdamStep, LambStep   Update      w, dw, velocity, second_moment, [master],   w, velocity, second_moment, [master]
//                                    [agreement]
//   AdjustScale          Update      agreement                                   agreement
//
// `sums` are the sums over all rows of a convolution's outputs and of their squares (2 x C x 1 x 1), for the batch norm
// that reads it: where all rows are samples, it need not read x for them. `saved` is mean then inverse standard
// deviation (2 x C); `dsums` is dscale then dshift (2 x C). BatchNorm's InputGrad reads y only when both residual and
// relu are on: otherwise the sign before the ReLU follows from x; only then may it add two parts of its gradient itself
// (dy2). Without a residual it may make y once more, for a weight gradient that comes after it. A fused conv or linear
// (attrs.relu) has its mask as a separate Relu InputGrad node before both gradients. `metrics` holds kNumMetrics
// numbers, summed over the rows that are samples.
//
// Tokens are N x L, or N x planes x L, and i32; one below zero is none: its embedding is zero, and no other token looks
// at it (its own output may be anything finite). Values over tokens are N x L x D. Linear, LayerNorm, Gelu, Tanh and
// Add take any number of axes; the last one is the features. Positions adds w's first L rows to each sample; its
// gradient is zero in the rows behind them. ImageTokens makes N x (1 + H W) x D of N x D x H x W: w (D), then the
// pixels row by row. LayerNorm saves mean, then inverse standard deviation of each row (2 x rows), in 32 bits at least;
// Attention the logarithm of each row's sum of exponentials (N x heads x L), likewise, and draws its dropout again in
// backward: weight (query i, key j) of head h of a sample is element (h L + i) L + j of the sample's row
// (dropout_mask.h).
//
// A loss is over rows of logits, one for each label: all axes of the logits but the last are those of the labels (N, or
// N x K where a sample has K). A label below zero has no loss. `saved` is each row's largest logit, then
// one over its sum of exponentials of what the others are smaller (2 x rows), in 32 bits at least, as exact as the
// probabilities themselves; the gradient of a row is weighted by inverse_samples / K. `metrics` counts rows.
// SpanLogits makes N x K x L of N x L x K, -1e4 where the token is none.
//
// Where values have sixteen bits, so have weights, their gradients of one micro-batch, and what is sent; parameters of
// normalisation, statistics and everything that is summed have 32, and each parameter has a `master` in f32 that the
// optimizer works on. With f16 the gradients carry a factor, the loss scale: an update whose gradients are not all
// finite is left out and the scale made smaller.
//
// What all stages have to know of an update before they make it is the `agreement`: whether gradients overflowed, and
// the sum of squares of each parameter's gradient, from which ClipNorm makes the norm of all of them and a factor for
// every step; where gradients are watched, it also adds each square to `watch`, as it was without the loss scale.
// Squares have a place for each parameter of the graph, and only the stage that first reads a parameter fills it
// (SquaresAttrs), so that the sum over stages gives everyone the same numbers in the same order whatever the partition.
// SumSquares with f16 also does what CheckFinite does. AdamStep and LambStep count steps from 1: those left out do not
// count.
//
// A parameter that several operators read has a gradient of its own for each, summed over micro-batches apart, so that
// it makes no difference whether they are on one stage: an Accumulate before the checks adds those of one stage (and
// clears the part), the sum over stages adds the rest.
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
  Constant,    // a parameter or statistic that stands still; lives as long as the session
  WeightGradient,
  GradientSum,     // a weight gradient summed over micro-batches; lives as long as the session
  SharedGradient,  // a weight gradient of one micro-batch, kept for the sum over replicas; lives as long as the session
  Velocity,        // optimizer slot: momentum, or the mean of gradients; lives as long as the session
  SecondMoment,    // optimizer slot: the mean of their squares; lives as long as the session
  Master,          // a parameter in f32 where the weight has sixteen bits; lives as long as the session
  Agreement,       // see AgreementField; lives as long as the session
  Watch,      // what the gradient's squares of each parameter were, summed over updates; lives as long as the session
  Statistic,  // running mean or variance; lives as long as the session
  Metric,
};
const char* name_of(BufferRole role);
constexpr bool is_optimizer_slot(BufferRole role) {
  return role == BufferRole::Velocity || role == BufferRole::SecondMoment;
}
constexpr bool is_persistent(BufferRole role) {
  return role == BufferRole::Input || role == BufferRole::Weight || role == BufferRole::Constant ||
         role == BufferRole::GradientSum || role == BufferRole::SharedGradient || is_optimizer_slot(role) ||
         role == BufferRole::Master || role == BufferRole::Agreement || role == BufferRole::Watch ||
         role == BufferRole::Statistic || role == BufferRole::Metric;
}
constexpr bool is_kept_gradient(BufferRole role) {
  return role == BufferRole::GradientSum || role == BufferRole::SharedGradient;
}

enum Metric { kLossSum, kTop1, kTop5, kRows, kNumMetrics };

// Floats. From kOverflow on they are summed over stages: it counts the gradients of an update that are not finite, and
// who found some (0: the update is made); from kSquares on follows one for each parameter of the graph, if gradients
// are clipped or watched. kNorm is that of the last gradient as it was without the loss scale, kClip what steps
// multiply it by.
enum AgreementField { kScale, kInverseScale, kGoodSteps, kSkippedSteps, kNorm, kClip, kOverflow, kSquares };

struct Buffer {
  std::string name;
  Shape shape;
  DType dtype = DType::F32;
  BufferRole role = BufferRole::Activation;
  ParamId param = kNone;  // of what belongs to one
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

// A value that one stage makes and another reads.
struct Crossing {
  ValueId value = kNone;
  int stage = 0;  // at the other end
  BufferId buffer = kNone;
  BufferId gradient = kNone;  // kNone where no gradient flows
};

constexpr bool is_step(OpKind kind) {
  return kind == OpKind::SgdStep || kind == OpKind::AdamStep || kind == OpKind::LambStep;
}

struct Program {
  std::vector<Buffer> buffers;
  std::vector<Node> nodes;
  // nodes[0, backward) are forward and nodes[backward, update) backward, once per micro-batch each; nodes[update, end)
  // run once per step: sums of gradients of one parameter, from `first_check` on checks, one per parameter; from
  // `first_step` on ClipNorm if gradients are clipped or watched, one step per parameter, and AdjustScale if there is a
  // loss scale.
  size_t first_backward = 0;
  size_t first_update = 0;
  size_t first_check = 0;
  size_t first_step = 0;
  BufferId features = kNone;  // kNone where the stage does not read them
  BufferId labels = kNone;
  BufferId metrics = kNone;
  BufferId logits = kNone;  // kNone where the stage does not make them
  BufferId agreement = kNone;
  BufferId watch = kNone;
  // Gradients of parameters that other stages read too: to be summed with theirs before the checks.
  std::vector<BufferId> tied;
  std::vector<Crossing> inputs;   // from earlier stages; a gradient goes back
  std::vector<Crossing> outputs;  // to later stages; a gradient comes back from each

  // Whether the parameters of a stage are updated together, because something is to be known of all gradients first.
  bool updates_whole() const { return agreement != kNone || first_check > first_update || !tied.empty(); }

  const Shape& read_shape(const Node& node, int i) const { return buffers[node.reads[i]].shape; }
  const Shape& write_shape(const Node& node, int i) const { return buffers[node.writes[i]].shape; }
};

// A slice of a graph's operators: those of stage `index` where each stage begins with operator `first[stage]`.
struct StageSlice {
  std::vector<OpId> first{0};
  int index = 0;
  OpId begin() const { return first[index]; }
  OpId end(const Graph& graph) const {
    return index + 1 < static_cast<int>(first.size()) ? first[index + 1] : static_cast<OpId>(graph.ops.size());
  }
  int stage_of(OpId op) const;
  bool operator==(const StageSlice&) const = default;
};

// Values that go from one stage to a later one, each with the stage that makes it and one that reads it.
struct StageEdge {
  int from = 0, to = 0;
  std::vector<ValueId> values;
};
std::vector<StageEdge> stage_edges(const Graph& graph, const std::vector<OpId>& first);

// A piece of a stage's gradients that is summed over replicas as one. Buckets follow each other in the order in
// which backward completes them.
struct Bucket {
  std::vector<BufferId> gradients;
  size_t end = 0;  // its last gradient is complete before this node
};

// How a device likes its programs.
struct Style {
  bool late_updates = false;  // all parameters at the end of a step, instead of each as early as possible
  bool sums_in_norm = false;  // batch norm's backward adds two parts of its gradient itself
  bool sums_in_conv = false;  // f16: a convolution makes the sums that the batch norm behind it needs
  bool remakes_norm = false;  // what batch norm makes for a convolution's weight gradient is made again, not kept
  bool operator==(const Style&) const = default;
};

// What the optimizer keeps of each parameter and needs to know before it.
struct UpdateRule {
  OpKind step = OpKind::SgdStep;
  bool velocity = true;
  bool second_moment = false;
  bool clips = false;         // needs the norm of all gradients
  bool watches = false;       // sums up how large the gradient of each parameter is
  bool may_unfreeze = false;  // what it keeps of a parameter that stands still is kept all the same
  bool sums_squares() const { return clips || watches; }
  bool operator==(const UpdateRule&) const = default;
};

// Whether all updates of a step come at its end: gradients in f16 are all checked before the first of them, and so is
// their norm made.
inline bool updates_late(const Graph& graph, const Style& style, const UpdateRule& rule) {
  return style.late_updates || graph.dtype == DType::F16 || rule.sums_squares();
}
// Whether gradients outlive the pass that makes them: for a sum over replicas, or because passes of other micro-batches
// run before a late update.
inline bool keeps_gradients(const Graph& graph, const Style& style, const UpdateRule& rule, bool replicated,
                            int microbatches_in_flight) {
  return replicated || (updates_late(graph, style, rule) && microbatches_in_flight > 1);
}

struct TrainingOptions {
  int microbatches = 1;
  UpdateRule rule = {};
  bool keeps_gradients = false;  // see above
  StageSlice stage = {};
  Style style = {};
  bool remakes_blocks = false;  // keep only what a block of the model reads, run its forward again before its backward
};

// Forward, backward and update. With one micro-batch and one replica each parameter is updated as soon as its
// gradient is complete and its old value no longer needed, so that gradients are never all alive at once - unless the
// style or a loss scale wants all updates at the end.
Program training_program(const Graph& graph, const TrainingOptions& options);

// Forward with running statistics and without dropout.
Program evaluation_program(const Graph& graph, const StageSlice& stage = {});

// The buckets of a training program made with `keeps_gradients`, of at least `bytes` each (but the last).
std::vector<Bucket> gradient_buckets(const Program& program, size_t bytes);

}  // namespace millrace::graph
