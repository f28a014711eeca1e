// A model as data: values, parameters and the operators between them, in topological order. Shapes include
// the batch; the batch is axis 0 of every value.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "millrace/base/dtype.h"
#include "millrace/base/shape.h"

namespace millrace::graph {

using ValueId = int;
using ParamId = int;
using OpId = int;
constexpr int kNone = -1;

enum class OpKind {
  Conv2d,
  Linear,
  EmbeddingBag,
  Embedding,
  Positions,
  ImageTokens,
  SelectToken,
  SpanLogits,
  LayerNorm,
  Gelu,
  Tanh,
  Attention,
  BatchNorm,
  Relu,
  MaxPool,
  AvgPool,
  AdaptiveAvgPool,
  Flatten,
  Dropout,
  Add,
  SoftmaxCrossEntropy,
  // Those that no model writes; autodiff and the optimizer add them.
  Accumulate,
  CheckFinite,
  SumSquares,
  ClipNorm,
  SgdStep,
  AdamStep,
  LambStep,
  AdjustScale,
};
const char* name_of(OpKind kind);

// A sliding window over the two spatial axes.
struct Window {
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;
  int dilation_h = 1, dilation_w = 1;

  static Window square(int kernel, int stride = 1, int pad = 0, int dilation = 1) {
    return {kernel, kernel, stride, stride, pad, pad, dilation, dilation};
  }
  // Output extent for an input extent; not positive when the window does not fit.
  static int64_t out_extent(int64_t in, int kernel, int stride, int pad, int dilation) {
    const int64_t room = in + 2 * pad - (int64_t{dilation} * (kernel - 1) + 1);
    return room < 0 ? 0 : room / stride + 1;
  }
  int64_t out_h(int64_t in) const { return out_extent(in, kernel_h, stride_h, pad_h, dilation_h); }
  int64_t out_w(int64_t in) const { return out_extent(in, kernel_w, stride_w, pad_w, dilation_w); }
};

// `relu` on an operator: its output goes through a ReLU before it is stored (set by fuse.h, not by models).
struct Conv2dAttrs {
  int out_channels = 0;
  Window window;
  int groups = 1;
  bool bias = true;
  bool relu = false;
};
struct LinearAttrs {
  int out_features = 0;
  bool bias = true;
  bool relu = false;
};
struct BatchNormAttrs {
  double epsilon = 1e-5;
  double momentum = 0.1;  // share of the new batch in the running statistics
  bool residual = false;  // a second input is added before the ReLU
  bool relu = false;
};
struct PoolAttrs {
  Window window;
  bool count_pad = true;  // average pooling: padding counts in the divisor
  bool relu = false;      // max pooling: as above; an output that is not positive has no place in its window (255)
};
struct AdaptivePoolAttrs {
  int out_h = 1, out_w = 1;
};
struct DropoutAttrs {
  double probability = 0.5;
};
struct EmbeddingAttrs {
  int plane = 0;  // of the features, where a token has several numbers: N x planes x L
};
struct SelectTokenAttrs {
  int index = 0;
};
struct LayerNormAttrs {
  double epsilon = 1e-5;
};
struct GeluAttrs {
  bool tanh = false;  // the approximation by a hyperbolic tangent, instead of the error function
};
// Of the queries, keys and values of all heads side by side (N x L x 3D): softmax(q k^T / sqrt(D / heads)) v for each.
struct AttentionAttrs {
  int heads = 1;
  bool causal = false;   // a token sees itself and those before it
  double dropout = 0.0;  // of the weights that values are summed with
};
struct LossAttrs {
  double label_smoothing = 0.0;
};
struct SquaresAttrs {
  bool counts = true;  // false: an earlier stage counts the parameter
};
using Attrs =
    std::variant<std::monostate, Conv2dAttrs, LinearAttrs, BatchNormAttrs, PoolAttrs, AdaptivePoolAttrs, DropoutAttrs,
                 EmbeddingAttrs, SelectTokenAttrs, LayerNormAttrs, GeluAttrs, AttentionAttrs, LossAttrs, SquaresAttrs>;

struct Value {
  std::string name;
  Shape shape;
  DType dtype = DType::F32;
};

enum class ParamRole { Weight, Bias, NormScale, NormShift, RunningMean, RunningVariance };

struct Init {
  enum class Kind { Constant, Normal, Uniform } kind = Kind::Constant;
  double scale = 0.0;  // the constant, the standard deviation, or the bound
};

// A parameter or a running statistic, known everywhere by its global name (torchvision's and Hugging Face's names).
// Several operators may read one.
struct Param {
  std::string name;
  Shape shape;
  ParamRole role = ParamRole::Weight;
  Init init;
  int depth = 0;                   // of its layer: 0 before the first, then 1, 2, ..., and one more behind them
  bool is_head = false;            // made for the classes of one task: may start anew where the rest is from a file
  bool stored_transposed = false;  // in published files its two axes are exchanged
  bool frozen = false;             // stands still
  bool is_statistic() const { return role == ParamRole::RunningMean || role == ParamRole::RunningVariance; }
  bool trainable() const { return !is_statistic() && !frozen; }
};

struct Op {
  std::string name;
  OpKind kind{};
  Attrs attrs;
  std::vector<ValueId> inputs;
  ValueId output = kNone;
  std::vector<ParamId> params;
  int block = kNone;    // one of the model's repeated parts: what recomputation keeps nothing of but its input
  int depth = 0;        // of its layer, as parameters have it
  bool frozen = false;  // computed as in evaluation, without a gradient
};

struct Graph {
  std::string name;
  DType dtype = DType::F32;
  std::vector<Value> values;
  std::vector<Param> params;
  std::vector<Op> ops;
  ValueId features = kNone;  // what a sample is: images N x C x H x W, or tokens N x planes x length
  ValueId labels = kNone;    // N or N x K, i32; a negative label marks a row that is not a sample
  ValueId logits = kNone;

  int64_t batch() const { return values[features].shape[0]; }
  OpId producer(ValueId value) const;  // kNone for features and labels
  int64_t trainable_elements() const;
  int64_t parameter_elements() const;  // with those that stand still
};

// Whether the model has repeated parts that can be computed again one by one.
bool has_blocks(const Graph& graph);

// Layers that can be frozen: all but the last, which is the task's own.
int num_layers(const Graph& graph);

// The first so many layers stand still, with what comes before them: they are computed as in evaluation - running
// statistics, no dropout - so that what they make depends on the sample alone, and nothing flows back through them. A
// parameter that a later layer shares with them stands still there too.
void freeze(Graph& graph, int layers);

// Multiply-add operations count as two. The arithmetic of one forward, as the direct algorithm does it.
double forward_flops(const Graph& graph, const Op& op);

}  // namespace millrace::graph
