// Linear layers over plain layouts: the weights of a classifier are too large to be reordered in every step. The
// two products that read the weights go through oneDNN's matmul, which packs them block by block; its inner
// product walks them along the wrong axis in the forward pass (VGG16's first classifier layer, batch 16: 103 ms
// against 28). The weight gradient is an inner product, which sums the bias gradient too.
#include <optional>
#include <utility>

#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

using graph::Pass;

// A value over tokens is a matrix with a row for each of them.
Layouts as_matrices(Layouts layouts) {
  auto flatten = [](Desc& desc) {
    const auto dims = desc.dims();
    if (dims.size() == 3) desc = plain_desc({dims[0] * dims[1], dims[2]});
  };
  for (Desc& desc : layouts.reads) flatten(desc);
  for (Desc& desc : layouts.writes) flatten(desc);
  return layouts;
}

// The O x I weights seen as I x O.
Desc transposed(const Desc& weight) {
  return {{weight.dims()[1], weight.dims()[0]}, dnnl::memory::data_type::f32, Tag::ba};
}

Kernel prepare_forward(std::shared_ptr<OneDnn> dnn, const graph::LinearAttrs& attrs, const Layouts& layouts) {
  const Desc& x = layouts.reads[0];
  const Desc& y = layouts.writes[0];
  const Desc w = transposed(layouts.reads[1]);
  const Desc b({1, attrs.out_features}, dnnl::memory::data_type::f32, Tag::ab);
  const dnnl::matmul::desc desc = attrs.bias ? dnnl::matmul::desc(x, w, b, y) : dnnl::matmul::desc(x, w, y);
  const dnnl::matmul::primitive_desc pd(desc, attributes(attrs.relu), dnn->engine);
  std::vector<Operand> operands{
      {DNNL_ARG_SRC, 0, false, x, x}, {DNNL_ARG_WEIGHTS, 1, false, w, w}, {DNNL_ARG_DST, 0, true, y, y}};
  if (attrs.bias) operands.push_back({DNNL_ARG_BIAS, 2, false, b, b});
  return make_kernel(std::move(dnn), pd.impl_info_str(), dnnl::matmul(pd), pd.scratchpad_desc(), operands);
}

Kernel prepare_input_grad(std::shared_ptr<OneDnn> dnn, const Layouts& layouts) {
  const Desc& dy = layouts.reads[0];
  const Desc& w = layouts.reads[1];
  const Desc& dx = layouts.writes[0];
  const dnnl::matmul::primitive_desc pd({dy, w, dx}, attributes(), dnn->engine);
  return make_kernel(
      std::move(dnn), pd.impl_info_str(), dnnl::matmul(pd), pd.scratchpad_desc(),
      {{DNNL_ARG_SRC, 0, false, dy, dy}, {DNNL_ARG_WEIGHTS, 1, false, w, w}, {DNNL_ARG_DST, 0, true, dx, dx}});
}

Kernel prepare_weight_grad(std::shared_ptr<OneDnn> dnn, const graph::LinearAttrs& attrs, const Layouts& layouts) {
  using dnnl::inner_product_backward_weights;
  using dnnl::inner_product_forward;
  const Desc& x = layouts.reads[0];
  const Desc& dy = layouts.reads[1];
  const Desc& dw = layouts.writes[0];
  const Desc db = plain_desc({attrs.out_features});
  const inner_product_forward::primitive_desc hint({dnnl::prop_kind::forward_training, x, dw, dy}, attributes(),
                                                   dnn->engine);
  const inner_product_backward_weights::desc desc = attrs.bias ? inner_product_backward_weights::desc(x, dw, db, dy)
                                                               : inner_product_backward_weights::desc(x, dw, dy);
  const inner_product_backward_weights::primitive_desc pd(desc, attributes(), dnn->engine, hint);
  std::vector<Operand> operands{
      {DNNL_ARG_SRC, 0, false, x, x}, {DNNL_ARG_DIFF_DST, 1, false, dy, dy}, {DNNL_ARG_DIFF_WEIGHTS, 0, true, dw, dw}};
  if (attrs.bias) operands.push_back({DNNL_ARG_DIFF_BIAS, 1, true, db, db});
  return make_kernel(std::move(dnn), pd.impl_info_str(), inner_product_backward_weights(pd), pd.scratchpad_desc(),
                     operands);
}

}  // namespace

Kernel prepare_linear(std::shared_ptr<OneDnn> dnn, const NodeView& view, const Layouts& stored) {
  const auto& attrs = view.attrs<graph::LinearAttrs>();
  const Layouts layouts = as_matrices(stored);
  switch (view.node.pass) {
    case Pass::InputGrad: return prepare_input_grad(std::move(dnn), layouts);
    case Pass::WeightGrad: return prepare_weight_grad(std::move(dnn), attrs, layouts);
    default: return prepare_forward(std::move(dnn), attrs, layouts);
  }
}

}  // namespace millrace::backend::cpu
