// The CPU kernels, one preparing function per operator, each in the file of its operator's name.
#pragma once

#include <memory>

#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/cpu/onednn.h"
#include "millrace/backend/optimizer.h"

namespace millrace::backend::cpu {

class Chooser;

// Where a node's operands lie, filled by the backend from its layout rules.
struct Layouts {
  std::vector<Desc> reads;
  std::vector<Desc> writes;
};

Desc conv_weight_desc(OneDnn& dnn, const Shape& input, const Desc& input_desc, const Shape& weight,
                      const graph::Conv2dAttrs& attrs);

Kernel prepare_conv(std::shared_ptr<OneDnn> dnn, Chooser& chooser, Convolution convolution, const NodeView& view,
                    const Layouts& layouts);
Kernel prepare_linear(std::shared_ptr<OneDnn> dnn, const NodeView& view, const Layouts& layouts);
Kernel prepare_flatten(std::shared_ptr<OneDnn> dnn, const NodeView& view, const Layouts& layouts);

Kernel prepare_batch_norm(const NodeView& view);
Kernel prepare_pool(const NodeView& view);  // max, average and adaptive average
Kernel prepare_loss(const NodeView& view);
Kernel prepare_dropout(const NodeView& view);

// Element by element: `floats` counts padding too.
Kernel prepare_embedding_bag(const NodeView& view);
Kernel prepare_embedding(const NodeView& view);
Kernel prepare_positions(const NodeView& view);
Kernel prepare_image_tokens(const NodeView& view);
Kernel prepare_select_token(const NodeView& view);
Kernel prepare_span_logits(const NodeView& view);
Kernel prepare_layer_norm(const NodeView& view);
Kernel prepare_gelu(const NodeView& view);
Kernel prepare_tanh(const NodeView& view);
Kernel prepare_attention(const NodeView& view);
Kernel prepare_relu(const NodeView& view, int64_t floats);
Kernel prepare_add(const NodeView& view, int64_t floats);  // Add and Accumulate
Kernel prepare_sum_squares(const NodeView& view, int64_t floats);
Kernel prepare_sgd(const NodeView& view, int64_t floats, const OptimizerOptions& options);
Kernel prepare_adam(const NodeView& view, int64_t floats, const OptimizerOptions& options);
Kernel prepare_lamb(const NodeView& view, int64_t floats, const OptimizerOptions& options);

Kernel prepare_clip_norm(const NodeView& view, const OptimizerOptions& options);

}  // namespace millrace::backend::cpu
