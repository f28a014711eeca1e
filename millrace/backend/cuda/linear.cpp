// Linear layers by cuBLASLt, bias and ReLU in its epilogue. Logits have room behind their rows (row_pitch.h).
#include "millrace/backend/cuda/bias.h"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/matmul.h"
#include "millrace/backend/cuda/row_pitch.h"

namespace millrace::backend::cuda {
namespace {

using graph::LinearAttrs;
using graph::Pass;

Kernel prepare_forward(MatmulLibrary& library, const NodeView& view) {
  const auto& attrs = view.attrs<LinearAttrs>();
  const DType dtype = dtype_of_read(view, 0);
  const Shape &x = view.read(0), &y = view.write(0);
  const int64_t pitch = row_pitch(view.program, view.node.writes[0]);
  // A bias has no room behind it.
  const auto product = library.choose({.rows = x.rows(),
                                       .columns = attrs.bias ? y.width() : pitch,
                                       .inner = x.width(),
                                       .transposes_b = true,
                                       .dtype = dtype,
                                       .bias = attrs.bias,
                                       .relu = attrs.relu,
                                       .d_pitch = pitch});
  return {product->name(), product->workspace_bytes(), [=, bias = attrs.bias](const Bindings& bind) -> Task {
            const void *from = bind.reads[0], *w = bind.reads[1], *b = bias ? bind.reads[2] : nullptr;
            return [=, to = bind.writes[0], scratch = bind.scratch](const StepContext&) {
              product->run(from, w, b, to, scratch);
            };
          }};
}

Kernel prepare_input_grad(MatmulLibrary& library, const NodeView& view) {
  const DType dtype = dtype_of_read(view, 0);
  const Shape &dy = view.read(0), &dx = view.write(0);
  const int64_t pitch = row_pitch(view.program, view.node.reads[0]);
  const auto product =
      library.choose({.rows = dy.rows(), .columns = dx.width(), .inner = pitch, .dtype = dtype, .a_pitch = pitch});
  return {product->name(), product->workspace_bytes(), [=](const Bindings& bind) -> Task {
            const void *from = bind.reads[0], *w = bind.reads[1];
            return [=, to = bind.writes[0], scratch = bind.scratch](const StepContext&) {
              product->run(from, w, nullptr, to, scratch);
            };
          }};
}

Kernel prepare_weight_grad(const Device& device, MatmulLibrary& library, const NodeView& view) {
  const DType dtype = dtype_of_read(view, 0);
  const Shape &x = view.read(0), &dy = view.read(1);
  const bool bias = view.num_writes() > 1;
  const DType out = dtype_of_write(view, 0), bias_type = bias ? dtype_of_write(view, 1) : dtype;
  const bool converts = out != dtype;  // after rounding, so that replicas have the gradients that one worker has
  const int64_t elements = padded(dy.width() * x.width());
  const int64_t pitch = row_pitch(view.program, view.node.reads[1]);
  const BiasShape bias_shape{dtype, dy.rows(), dy.width(), pitch};
  const auto product = library.choose({.rows = dy.width(),
                                       .columns = x.width(),
                                       .inner = x.rows(),
                                       .transposes_a = true,
                                       .dtype = dtype,
                                       .a_pitch = pitch});
  const size_t sums = bias ? bias_gradient_scratch(device, bias_shape) : 0;
  const size_t workspace = (product->workspace_bytes() + 255) / 256 * 256;
  const size_t rounded = converts ? static_cast<size_t>(elements) * bytes_of(dtype) : 0;
  return {product->name(), std::max(workspace + rounded, sums), [=](const Bindings& bind) -> Task {
            const void *from = bind.reads[0], *gradient = bind.reads[1];
            void* dw = converts ? static_cast<std::byte*>(bind.scratch) + workspace : bind.writes[0];
            return [=, to = bind.writes[0], db = bias ? bind.writes[1] : nullptr,
                    scratch = bind.scratch](const StepContext&) {
              product->run(gradient, from, nullptr, dw, scratch);
              if (converts) convert(device, dw, dtype, static_cast<float*>(to), elements);
              if (db) bias_gradient(device, bias_shape, gradient, db, bias_type, scratch);
            };
          }};
}

}  // namespace

Kernel prepare_linear(const Device& device, MatmulLibrary& library, const NodeView& view) {
  switch (view.node.pass) {
    case Pass::Forward:
    case Pass::Evaluate: return prepare_forward(library, view);
    case Pass::InputGrad: return prepare_input_grad(library, view);
    case Pass::WeightGrad: return prepare_weight_grad(device, library, view);
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::cuda
