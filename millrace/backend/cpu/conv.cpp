// Convolution: direct and Winograd from oneDNN, our own Winograd and products of matrices, the fastest kept per layer
// and pass.
#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

#include "millrace/backend/cpu/chooser.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/cpu/matrix_conv.h"
#include "millrace/backend/cpu/winograd.h"
#include "millrace/base/error.h"

namespace millrace::backend::cpu {
namespace {

using dnnl::algorithm;
using graph::Conv2dAttrs;
using graph::Pass;
using graph::Window;

struct Geometry {
  dnnl::memory::dims strides, dilates, padding_begin, padding_end;

  Geometry(const Window& w, const Desc& x, const Desc& y)
      : strides{w.stride_h, w.stride_w}, dilates{w.dilation_h - 1, w.dilation_w - 1}, padding_begin{w.pad_h, w.pad_w} {
    // oneDNN wants the padding that is used exactly: the last rows may not be reached at all.
    auto end = [](int64_t in, int64_t out, int kernel, int stride, int pad, int dilation) {
      return (out - 1) * stride + dilation * (kernel - 1) + 1 - in - pad;
    };
    padding_end = {end(x.dims()[2], y.dims()[2], w.kernel_h, w.stride_h, w.pad_h, w.dilation_h),
                   end(x.dims()[3], y.dims()[3], w.kernel_w, w.stride_w, w.pad_w, w.dilation_w)};
  }
};

Desc any_weight(const Shape& weight, int groups) {
  dnnl::memory::dims dims{weight[0], weight[1], weight[2], weight[3]};
  if (groups > 1) dims = {groups, weight[0] / groups, weight[1], weight[2], weight[3]};
  return {dims, dnnl::memory::data_type::f32, Tag::any};
}

dnnl::convolution_forward::primitive_desc forward_desc(OneDnn& dnn, algorithm kind, const Desc& x, const Desc& w,
                                                       const std::optional<Desc>& b, const Desc& y, const Geometry& g,
                                                       bool relu) {
  const auto prop = dnnl::prop_kind::forward_training;
  const dnnl::convolution_forward::desc desc =
      b ? dnnl::convolution_forward::desc(prop, kind, x, w, *b, y, g.strides, g.dilates, g.padding_begin, g.padding_end)
        : dnnl::convolution_forward::desc(prop, kind, x, w, y, g.strides, g.dilates, g.padding_begin, g.padding_end);
  return {desc, attributes(relu), dnn.engine};
}

// Everything a candidate of one node is made from; `x`, `w`, `y` are layouts as stored.
struct ConvNode {
  std::shared_ptr<OneDnn> dnn;
  Pass pass;
  Desc x, w, y;
  std::optional<Desc> b;
  Geometry geometry;
  bool relu;

  Kernel forward(const std::string& name, algorithm kind, const Desc& x_try, const Desc& y_try) const {
    const auto pd = forward_desc(*dnn, kind, x_try, any_layout(w), b, y_try, geometry, relu);
    std::vector<Operand> operands{{DNNL_ARG_SRC, 0, false, x, pd.src_desc()},
                                  {DNNL_ARG_WEIGHTS, 1, false, w, pd.weights_desc()},
                                  {DNNL_ARG_DST, 0, true, y, pd.dst_desc()}};
    if (b) operands.push_back({DNNL_ARG_BIAS, 2, false, *b, *b});
    return make_kernel(dnn, name, dnnl::convolution_forward(pd), pd.scratchpad_desc(), operands);
  }

  Kernel input_grad(const std::string& name, algorithm kind, const Desc& x_try, const Desc& y_try) const {
    const auto hint = forward_desc(*dnn, kind, x_try, any_layout(w), b, y_try, geometry, false);
    const dnnl::convolution_backward_data::desc desc(kind, x_try, any_layout(w), y_try, geometry.strides,
                                                     geometry.dilates, geometry.padding_begin, geometry.padding_end);
    const dnnl::convolution_backward_data::primitive_desc pd(desc, attributes(), dnn->engine, hint);
    return make_kernel(dnn, name, dnnl::convolution_backward_data(pd), pd.scratchpad_desc(),
                       {{DNNL_ARG_DIFF_DST, 0, false, y, pd.diff_dst_desc()},
                        {DNNL_ARG_WEIGHTS, 1, false, w, pd.weights_desc()},
                        {DNNL_ARG_DIFF_SRC, 0, true, x, pd.diff_src_desc()}});
  }

  Kernel weight_grad(const std::string& name, algorithm kind, const Desc& x_try, const Desc& y_try) const {
    const auto hint = forward_desc(*dnn, kind, x_try, any_layout(w), b, y_try, geometry, false);
    using dnnl::convolution_backward_weights;
    const convolution_backward_weights::desc desc =
        b ? convolution_backward_weights::desc(kind, x_try, any_layout(w), *b, y_try, geometry.strides,
                                               geometry.dilates, geometry.padding_begin, geometry.padding_end)
          : convolution_backward_weights::desc(kind, x_try, any_layout(w), y_try, geometry.strides, geometry.dilates,
                                               geometry.padding_begin, geometry.padding_end);
    const convolution_backward_weights::primitive_desc pd(desc, attributes(), dnn->engine, hint);
    std::vector<Operand> operands{{DNNL_ARG_SRC, 0, false, x, pd.src_desc()},
                                  {DNNL_ARG_DIFF_DST, 1, false, y, pd.diff_dst_desc()},
                                  {DNNL_ARG_DIFF_WEIGHTS, 0, true, w, pd.diff_weights_desc()}};
    if (b) operands.push_back({DNNL_ARG_DIFF_BIAS, 1, true, *b, *b});
    return make_kernel(dnn, name, convolution_backward_weights(pd), pd.scratchpad_desc(), operands);
  }

  // Nothing where oneDNN has no such kernel for these layouts.
  std::optional<Kernel> candidate(const std::string& name, algorithm kind, bool stored_layouts) const {
    const Desc x_try = stored_layouts ? x : any_layout(x);
    const Desc y_try = stored_layouts ? y : any_layout(y);
    try {
      switch (pass) {
        case Pass::InputGrad: return input_grad(name, kind, x_try, y_try);
        case Pass::WeightGrad: return weight_grad(name, kind, x_try, y_try);
        default: return forward(name, kind, x_try, y_try);
      }
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
};

Shape image_shape(const Desc& desc) {
  const auto dims = desc.dims();
  return {dims[0], dims[1], dims[2], dims[3]};
}

std::string work_name(const ConvNode& node, const Conv2dAttrs& attrs) {
  const auto& x = node.x.dims();
  const Window& w = attrs.window;
  return fmt::format("conv {} n{} c{} {}x{} o{} k{}x{} s{}x{} p{}x{} d{}x{} g{}{}{}",
                     node.pass == Pass::Evaluate ? "F" : name_of(node.pass), x[0], x[1], x[2], x[3], attrs.out_channels,
                     w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.pad_h, w.pad_w, w.dilation_h, w.dilation_w,
                     attrs.groups, node.b ? " bias" : "", node.relu ? " relu" : "");
}

bool allows(Convolution convolution, const std::string& algorithm) {
  switch (convolution) {
    case Convolution::Auto: return true;
    case Convolution::Winograd: return algorithm == "winograd";
    case Convolution::WinogradBlocks: return algorithm == "winograd_blocks";
    case Convolution::WinogradPanels: return algorithm == "winograd_panels";
    case Convolution::WinogradPhases: return algorithm == "winograd_phases";
    case Convolution::Product: return algorithm == "product";
    case Convolution::Strassen: return algorithm == "strassen";
    case Convolution::Direct: break;
  }
  // Every multiplication of the definition, and no other.
  return algorithm == "direct" || algorithm == "direct_any" || algorithm == "product";
}

}  // namespace

Desc conv_weight_desc(OneDnn& dnn, const Shape& input, const Desc& input_desc, const Shape& weight,
                      const Conv2dAttrs& attrs) {
  const Shape output{input[0], attrs.out_channels, attrs.window.out_h(input[2]), attrs.window.out_w(input[3])};
  const Desc y = blocked_desc(output);
  const Desc any = any_weight(weight, attrs.groups);
  const Geometry geometry(attrs.window, input_desc, y);
  return forward_desc(dnn, algorithm::convolution_direct, input_desc, any, std::nullopt, y, geometry, false)
      .weights_desc();
}

Kernel prepare_conv(std::shared_ptr<OneDnn> dnn, Chooser& chooser, Convolution convolution, const NodeView& view,
                    const Layouts& layouts) {
  const auto& attrs = view.attrs<Conv2dAttrs>();
  const Pass pass = view.node.pass;
  const Desc& x = pass == Pass::InputGrad ? layouts.writes[0] : layouts.reads[0];
  const Desc& w = pass == Pass::WeightGrad ? layouts.writes[0] : layouts.reads[1];
  const Desc& y = pass == Pass::InputGrad    ? layouts.reads[0]
                  : pass == Pass::WeightGrad ? layouts.reads[1]
                                             : layouts.writes[0];
  const bool forward = pass == Pass::Forward || pass == Pass::Evaluate;
  std::optional<Desc> b;
  if (attrs.bias && pass != Pass::InputGrad) b = plain_desc({attrs.out_channels});
  const ConvNode node{std::move(dnn), pass, x, w, y, b, Geometry(attrs.window, x, y), forward && attrs.relu};

  std::vector<Kernel> candidates;
  auto offer = [&](const char* name, algorithm kind, bool stored_layouts) {
    if (auto kernel = node.candidate(name, kind, stored_layouts)) candidates.push_back(std::move(*kernel));
  };
  const Window& window = attrs.window;
  const bool small_kernel = window.kernel_h == 3 && window.kernel_w == 3 && window.stride_h == 1 &&
                            window.stride_w == 1 && window.dilation_h == 1 && window.dilation_w == 1;
  const Shape x_shape = image_shape(x), y_shape = image_shape(y);
  if (x == blocked_desc(x_shape) && y == blocked_desc(y_shape)) {
    auto offer_own = [&](std::vector<Kernel> kernels) {
      for (Kernel& kernel : kernels) {
        if (allows(convolution, kernel.algorithm)) candidates.push_back(std::move(kernel));
      }
    };
    offer_own(winograd_kernels({pass, x_shape, y_shape, attrs, node.relu}, w));
    offer_own(matrix_conv_kernels({pass, x_shape, y_shape, attrs, node.relu}, w));
  }
  if (allows(convolution, "winograd") && small_kernel) {
    offer("winograd", algorithm::convolution_winograd, true);
  }
  const bool one_is_named = convolution != Convolution::Auto && convolution != Convolution::Direct;
  if (one_is_named && !candidates.empty()) return std::move(candidates[0]);
  offer("direct", algorithm::convolution_direct, true);
  // Odd channel counts and groups: the fast kernels may exist only for other layouts than ours.
  const bool odd = attrs.groups > 1 || x.dims()[1] % 16 != 0 || attrs.out_channels % 16 != 0;
  if (odd) offer("direct_any", algorithm::convolution_direct, false);
  if (candidates.empty()) fail_run("{}: oneDNN has no convolution for it", view.node.name);

  Chooser::OperandBytes bytes;
  for (const Desc& desc : layouts.reads) bytes.reads.push_back(desc.get_size());
  for (const Desc& desc : layouts.writes) bytes.writes.push_back(desc.get_size());
  return chooser.choose(work_name(node, attrs), std::move(candidates), bytes);
}

}  // namespace millrace::backend::cpu
