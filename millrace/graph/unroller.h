// Unrolls a graph into a Program: forward in order, then backward in reverse, input gradient before weight
// gradient, each update as early as it is safe.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "millrace/graph/program.h"

namespace millrace::graph {

class Unroller {
 public:
  Unroller(const Graph& graph, const StageSlice& stage);
  Program evaluation();
  Program training(const TrainingOptions& options);

 private:
  // A buffer for a value that this stage reads but does not make.
  void bring_in(ValueId value);
  void find_outputs();
  // What arrives and what leaves are different buffers, or one could be overwritten while it is still on its way.
  void check_crossings() const;
  // Which parameters are read by several operators, of whatever stages.
  void find_shared();
  // A value needs a gradient if a trainable parameter stands before it.
  void find_differentiable();
  int readers(ValueId value) const;
  // The block's forward once more, into buffers of its own: those of the first time need not be kept.
  void remake(int block);
  // Of what was made once more, the nodes whose results nobody reads: the end of a block is kept as the next one's
  // beginning.
  void drop_unread();

  // unroll_forward.cpp
  void forward(const Op& op, bool training);
  // Whether a convolution also sums its outputs, for the batch norm of this stage that alone reads them.
  bool makes_sums(const Op& op) const;

  // unroll_backward.cpp
  // The gradient of a value: the sum of what its readers contributed, summed in place.
  BufferId gradient_of(ValueId value, const Op& op);
  // The same where the operator adds two parts by itself: the second is given back apart.
  std::pair<BufferId, BufferId> gradient_parts_of(ValueId value, const Op& op);
  BufferId input_gradient(const Op& op, int input);
  void backward(const Op& op);
  // Whether a convolution's weight gradient waits until the backward pass of the batch norm before it has made the
  // convolution's input once more, so that it need not be kept.
  bool waits_for_norm(const Op& op) const;
  void emit_weight_grad(const Op& op, std::vector<BufferId> reads, const std::vector<ParamId>& params);

  // unroll_updates.cpp
  // What no node reads but the state has: all digits of a weight that is computed with in sixteen bits, and the
  // optimizer's slots of one that may learn again.
  void keep_state_of_frozen();
  // The gradients of one parameter are added up once all are there.
  void emit_shared_step(const Op& op, ParamId param, BufferId gradient);
  // Of the operators of this stage, the first: backward comes to it last.
  OpId first_reader_here(ParamId param) const;
  bool reads_elsewhere(ParamId param) const;
  void emit_step(const Op& op, ParamId id, BufferId gradient, bool late);
  void append_updates();

  // Of a parameter's weight: normalisation is not worth the loss of digits.
  DType weight_type(const Param& param) const {
    const bool is_factor = param.role == ParamRole::Weight || param.role == ParamRole::Bias;
    return is_factor ? graph_.dtype : wide(graph_.dtype);
  }
  BufferId add_buffer(Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  BufferId buffer_of_value(ValueId value, BufferRole role) {
    const Value& v = graph_.values[value];
    return add_buffer({v.name, v.shape, v.dtype, role});
  }
  BufferId saved(const Op& op, const char* what, Shape shape, DType dtype) {
    return add_buffer({op.name + "." + what, shape, dtype, BufferRole::Activation});
  }
  BufferId gradient_like(BufferId buffer) {
    Buffer gradient = program_.buffers[buffer];
    gradient.name = "d " + gradient.name;
    gradient.role = BufferRole::Gradient;
    return add_buffer(std::move(gradient));
  }
  BufferId& op_saved(const Op& op) {
    if (saved_.empty()) saved_.assign(graph_.ops.size(), kNone);
    return saved_[id_of(op)];
  }
  OpId id_of(const Op& op) const { return stage_.begin() + static_cast<OpId>(&op - ops_.data()); }
  void emit(const Op& op, OpKind kind, Pass pass, std::vector<BufferId> reads, std::vector<BufferId> writes,
            std::vector<InPlace> in_place = {});

  const Graph& graph_;
  const StageSlice stage_;
  const std::vector<Op> ops_;  // of the stage
  TrainingOptions options_;
  Program program_;
  std::vector<BufferId> value_buffer_;
  std::vector<BufferId> weight_;
  std::vector<BufferId> saved_;               // per operator: batch-norm statistics, argmax, sums
  std::vector<std::vector<BufferId>> parts_;  // per value: contributions to its gradient
  std::vector<bool> differentiable_;
  bool scales_ = false;  // gradients carry a loss scale
  std::vector<int> readers_of_param_;
  std::vector<OpId> first_reader_;  // of each parameter
  std::vector<BufferId> summed_;    // of parameters with several readers: the gradient that others are added to
  std::vector<Node> sums_;          // those additions
  std::vector<Node> deferred_;
  std::vector<size_t> remade_;   // nodes of blocks that were made once more
  const Op* waiting_ = nullptr;  // convolution whose weight gradient comes after the batch norm before it
  BufferId waiting_dy_ = kNone;
};

}  // namespace millrace::graph
