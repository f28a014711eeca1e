// The CUDA kernels, one preparing function per operator, each in the file of its operator's name. Tasks launch on the
// device's stream and return; what changes from step to step they read from Device::context, not from the argument.
#pragma once

#include <memory>

#include "millrace/backend/cuda/device.h"
#include "millrace/backend/optimizer.h"

namespace millrace::backend::cuda {

class ConvLibrary;
class MatmulLibrary;

Kernel prepare_conv(const Device& device, ConvLibrary& library, const NodeView& view);
Kernel prepare_linear(const Device& device, MatmulLibrary& library, const NodeView& view);
Kernel prepare_batch_norm(const Device& device, const NodeView& view);
Kernel prepare_max_pool(const Device& device, const NodeView& view);
Kernel prepare_avg_pool(const Device& device, const NodeView& view);  // average and adaptive average
Kernel prepare_embedding_bag(const Device& device, const NodeView& view);
Kernel prepare_embedding(const Device& device, const NodeView& view);
Kernel prepare_positions(const Device& device, const NodeView& view);
Kernel prepare_image_tokens(const Device& device, const NodeView& view);
Kernel prepare_select_token(const Device& device, const NodeView& view);
Kernel prepare_span_logits(const Device& device, const NodeView& view);
Kernel prepare_layer_norm(const Device& device, const NodeView& view);
Kernel prepare_gelu(const Device& device, const NodeView& view);
Kernel prepare_tanh(const Device& device, const NodeView& view);
Kernel prepare_attention(const Device& device, ConvLibrary& library, const NodeView& view);
Kernel prepare_relu(const Device& device, const NodeView& view);
Kernel prepare_add(const Device& device, const NodeView& view);  // Add and Accumulate
Kernel prepare_flatten(const Device& device, const NodeView& view);
Kernel prepare_dropout(const Device& device, const NodeView& view);
Kernel prepare_loss(const Device& device, const NodeView& view);

// Several parameters at once: the operands of nodes of one kind, one node after another.
Kernel prepare_sgd(const Device& device, const std::vector<NodeView>& views, const OptimizerOptions& options);
Kernel prepare_adam(const Device& device, const std::vector<NodeView>& views, const OptimizerOptions& options);
Kernel prepare_lamb(const Device& device, const std::vector<NodeView>& views, const OptimizerOptions& options);
Kernel prepare_check_finite(const Device& device, const std::vector<NodeView>& views);
Kernel prepare_sum_squares(const Device& device, const std::vector<NodeView>& views);

Kernel prepare_clip_norm(const Device& device, const NodeView& view, const OptimizerOptions& options);
Kernel prepare_adjust_scale(const Device& device, const ScaleRule& rule);

// For a pass the operator does not have, and for shapes a kernel cannot take.
[[noreturn]] void refuse_pass(const NodeView& view);
[[noreturn]] void refuse_shape(const NodeView& view, const char* why);

}  // namespace millrace::backend::cuda
