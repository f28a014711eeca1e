// Convolution by cuDNN. Where it has no engine - groups of a few channels, say - by plain loops (conv_plain.h). The one
// that reads the images works on folded ones (stem.h).
#include "millrace/backend/cuda/conv.h"

#include <algorithm>

#include "millrace/backend/cuda/bias.h"
#include "millrace/backend/cuda/conv_plain.h"
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/stem.h"
#include "millrace/base/error.h"

namespace millrace::backend::cuda {
namespace {

using graph::Conv2dAttrs;
using graph::Pass;

enum : int64_t { kX = 1, kW, kY, kBias, kProduct, kSum, kTotal, kSquares, kScratch };

constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// A convolution as it is stored.
struct Geometry {
  Image x, y;
  Conv2dAttrs attrs;
  DType dtype;
  int64_t w_channels;  // of one filter, with padding
  std::optional<Fold> fold;

  Geometry(const NodeView& view, const Shape& x_shape, const Shape& y_shape, graph::BufferId x_id, DType value_type)
      : x(x_shape),
        y(y_shape),
        attrs(view.attrs<Conv2dAttrs>()),
        dtype(value_type),
        w_channels(padded(x.channels / attrs.groups)) {
    if (x_id != view.program.features) return;
    fold = stem_fold(view.graph);
    if (!fold) return;
    x.h = fold->stored_h, x.w = fold->stored_w, x.c = w_channels = fold->stored_c;
    attrs.window = graph::Window::square(fold->taps);
  }

  // Groups must not begin inside the padding of the group before.
  bool fits_cudnn() const {
    const int groups = attrs.groups;
    return groups == 1 || (x.channels % (8 * groups) == 0 && y.channels % (8 * groups) == 0);
  }
  int64_t w_elements() const { return y.c * attrs.window.kernel_h * attrs.window.kernel_w * w_channels; }
  // What a stem's weight takes in its folded form; its own otherwise.
  size_t folded_bytes() const { return fold ? aligned(static_cast<size_t>(w_elements()) * bytes_of(dtype)) : 0; }

  TensorSpec x_spec() const { return image_spec(kX, x); }
  TensorSpec y_spec(int64_t id = kY, bool is_virtual = false) const {
    TensorSpec spec = image_spec(id, y);
    spec.is_virtual = is_virtual;
    if (is_virtual) spec.dtype = DType::F32;
    return spec;
  }
  TensorSpec w_spec() const {
    const int64_t r = attrs.window.kernel_h, s = attrs.window.kernel_w;
    return {kW, dtype, {y.c, w_channels, r, s}, {r * s * w_channels, 1, s * w_channels, w_channels}};
  }
  TensorSpec bias_spec() const { return channels_spec(kBias, dtype); }
  TensorSpec channels_spec(int64_t id, DType type) const { return {id, type, {1, y.c, 1, 1}, {y.c, 1, y.c, y.c}}; }

  void add_conv(OperationGraph& graph, ConvPass pass, const TensorSpec& out) const {
    graph.add_conv(pass, x_spec(), w_spec(), out, attrs.window);
  }
  std::vector<ConvLibrary::Operand> operands() const {
    return {{kX, x.elements(), dtype}, {kW, w_elements(), dtype}, {kY, y.elements(), dtype}};
  }
  std::string work(const char* pass) const {
    const graph::Window& w = attrs.window;
    return fmt::format("conv {} {} {}x{}x{}x{} to {} kernel {}x{} stride {}x{} pad {}x{} dilation {}x{} groups {}{}{}",
                       pass, name_of(dtype), x.n, x.h, x.w, x.c, y.c, w.kernel_h, w.kernel_w, w.stride_h, w.stride_w,
                       w.pad_h, w.pad_w, w.dilation_h, w.dilation_w, attrs.groups, attrs.bias ? " bias" : "",
                       attrs.relu ? " relu" : "");
  }

 private:
  TensorSpec image_spec(int64_t id, const Image& image) const {
    return {
        id, dtype, {image.n, image.c, image.h, image.w}, {image.h * image.w * image.c, 1, image.w * image.c, image.c}};
  }
};

// A convolution that also sums its outputs for the batch norm behind it: in cuDNN's epilogue, or by another pass.
Kernel prepare_forward_with_sums(const Device& device, ConvLibrary& library, const NodeView& view) {
  const Geometry g(view, view.read(0), view.write(0), view.node.reads[0], dtype_of_read(view, 0));
  const BiasShape shape{g.dtype, g.y.pixels(), g.y.c};
  const size_t moments_bytes = bias_gradient_scratch(device, shape);
  std::vector<ConvLibrary::Operand> operands = g.operands();
  operands.push_back({kTotal, g.y.c, DType::F32});
  operands.push_back({kSquares, g.y.c, DType::F32});
  operands.push_back({kScratch, static_cast<int64_t>(moments_bytes / sizeof(float) + 2 * g.y.c), DType::F32});
  auto with_sums = std::make_shared<OperationGraph>(), plain = std::make_shared<OperationGraph>();
  g.add_conv(*with_sums, ConvPass::Forward, g.y_spec());
  with_sums->add_sums(g.y_spec(), g.channels_spec(kTotal, DType::F32), g.channels_spec(kSquares, DType::F32));
  g.add_conv(*plain, ConvPass::Forward, g.y_spec());
  std::vector<ConvLibrary::Way> ways{{"plain", plain, [=](const std::vector<void*>& memory) {
                                        auto* sums = static_cast<float*>(memory[5]);
                                        channel_moments(device, shape, memory[2], sums, sums + 2 * g.y.c);
                                      }}};
  // cuDNN adds its sums in whatever order they come, and does not say so.
  if (!library.deterministic()) ways.push_back({"sums", with_sums, {}, 5});
  ConvLibrary::Chosen chosen;
  if (g.fits_cudnn()) chosen = library.choose(g.work("F with sums"), ways, operands);
  if (!chosen.plan && g.fold) refuse_shape(view, "cuDNN has no convolution for the folded images");
  const bool sums_itself = chosen.plan && ways[chosen.way].name == "sums";
  const size_t workspace = chosen.plan ? chosen.plan->workspace_bytes() : 0;
  const ConvLoops loops(device, view, g.dtype);
  const cudnnHandle_t handle = library.handle();
  return {chosen.plan ? chosen.name : "loops", g.folded_bytes() + std::max(workspace, moments_bytes),
          [=](const Bindings& bind) -> Task {
            auto* scratch = static_cast<std::byte*>(bind.scratch);
            auto* sums = bind.write<float>(1);
            std::vector<int64_t> ids{kX, kW, kY};
            std::vector<void*> memory{bind.reads[0], g.fold ? scratch : bind.reads[1], bind.writes[0]};
            if (sums_itself) {
              ids.insert(ids.end(), {kTotal, kSquares});
              memory.insert(memory.end(), {static_cast<void*>(sums), static_cast<void*>(sums + g.y.c)});
            }
            std::shared_ptr<const Descriptor> pack;
            if (chosen.plan) pack = chosen.plan->pack(ids, memory, scratch + g.folded_bytes());
            const void *x = bind.reads[0], *w = bind.reads[1];
            return [=, plan = chosen.plan, y = bind.writes[0]](const StepContext&) {
              if (g.fold) fold_weight(device, *g.fold, w, g.y.c, scratch, g.dtype);
              if (plan) {
                plan->run(handle, *pack);
              } else {
                loops.forward(x, w, y);
              }
              if (!sums_itself) channel_moments(device, shape, y, sums, scratch + g.folded_bytes());
            };
          }};
}

Kernel prepare_forward(const Device& device, ConvLibrary& library, const NodeView& view) {
  if (view.num_writes() > 1) return prepare_forward_with_sums(device, library, view);
  const Geometry g(view, view.read(0), view.write(0), view.node.reads[0], dtype_of_read(view, 0));
  const bool bias = g.attrs.bias, relu = g.attrs.relu;
  const BiasShape bias_shape{g.dtype, g.y.pixels(), g.y.c};
  auto after = [=](void* y, const void* b) {
    if (bias || relu) add_bias(device, bias_shape, y, b, relu);
  };
  std::vector<ConvLibrary::Operand> operands = g.operands();
  if (bias) operands.push_back({kBias, g.y.c, g.dtype});
  std::vector<ConvLibrary::Way> ways;
  if (bias || relu) {
    auto fused = std::make_shared<OperationGraph>();
    const TensorSpec product = g.y_spec(kProduct, true), sum = g.y_spec(kSum, true), bias_spec = g.bias_spec();
    g.add_conv(*fused, ConvPass::Forward, product);
    if (bias) fused->add_pointwise(CUDNN_POINTWISE_ADD, product, &bias_spec, relu ? sum : g.y_spec());
    if (relu) fused->add_pointwise(CUDNN_POINTWISE_RELU_FWD, bias ? sum : product, nullptr, g.y_spec());
    ways.push_back({"fused", fused, {}, operands.size()});
  }
  auto plain = std::make_shared<OperationGraph>();
  g.add_conv(*plain, ConvPass::Forward, g.y_spec());
  ways.push_back({"plain", plain, {}});
  if (bias || relu) {
    ways.back().after = [=](const std::vector<void*>& memory) { after(memory[2], bias ? memory[3] : nullptr); };
  }

  ConvLibrary::Chosen chosen;
  if (g.fits_cudnn()) chosen = library.choose(g.work("F"), ways, operands);
  if (!chosen.plan) {
    if (g.fold) refuse_shape(view, "cuDNN has no convolution for the folded images");
    const ConvLoops loops(device, view, g.dtype);
    return {"loops", 0, [=](const Bindings& bind) -> Task {
              const void *x = bind.reads[0], *w = bind.reads[1], *b = bias ? bind.reads[2] : nullptr;
              return [=, y = bind.writes[0]](const StepContext&) {
                loops.forward(x, w, y);
                after(y, b);
              };
            }};
  }
  const bool fused = ways[chosen.way].name == "fused";
  const cudnnHandle_t handle = library.handle();
  // Scratch: the folded weight, then the workspace.
  return {chosen.name, g.folded_bytes() + chosen.plan->workspace_bytes(), [=](const Bindings& bind) -> Task {
            auto* scratch = static_cast<std::byte*>(bind.scratch);
            std::vector<int64_t> ids{kX, kW, kY};
            std::vector<void*> memory{bind.reads[0], g.fold ? scratch : bind.reads[1], bind.writes[0]};
            if (fused && bias) {
              ids.push_back(kBias);
              memory.push_back(bind.reads[2]);
            }
            const auto pack = chosen.plan->pack(ids, memory, scratch + g.folded_bytes());
            const void *w = bind.reads[1], *b = bias ? bind.reads[2] : nullptr;
            return [=, plan = chosen.plan, y = bind.writes[0]](const StepContext&) {
              if (g.fold) fold_weight(device, *g.fold, w, g.y.c, scratch, g.dtype);
              plan->run(handle, *pack);
              if (!fused) after(y, b);
            };
          }};
}

Kernel prepare_input_grad(const Device& device, ConvLibrary& library, const NodeView& view) {
  const Geometry g(view, view.write(0), view.read(0), view.node.writes[0], dtype_of_read(view, 0));
  ConvLibrary::Chosen chosen;
  if (g.fits_cudnn()) {
    auto graph = std::make_shared<OperationGraph>();
    g.add_conv(*graph, ConvPass::InputGrad, g.y_spec());
    chosen = library.choose(g.work("I"), {{"plain", graph, {}}}, g.operands());
  }
  if (!chosen.plan) {
    const ConvLoops loops(device, view, g.dtype);
    return {"loops", 0, [=](const Bindings& bind) -> Task {
              const void *dy = bind.reads[0], *w = bind.reads[1];
              return [=, dx = bind.writes[0]](const StepContext&) { loops.input_grad(dy, w, dx); };
            }};
  }
  const cudnnHandle_t handle = library.handle();
  return {
      chosen.name, chosen.plan->workspace_bytes(), [=](const Bindings& bind) -> Task {
        const auto pack = chosen.plan->pack({kX, kW, kY}, {bind.writes[0], bind.reads[1], bind.reads[0]}, bind.scratch);
        return [=, plan = chosen.plan](const StepContext&) { plan->run(handle, *pack); };
      }};
}

Kernel prepare_weight_grad(const Device& device, ConvLibrary& library, const NodeView& view) {
  const Geometry g(view, view.read(0), view.read(1), view.node.reads[0], dtype_of_read(view, 0));
  const bool bias = view.num_writes() > 1;
  const DType out_type = dtype_of_write(view, 0), bias_type = bias ? dtype_of_write(view, 1) : g.dtype;
  const bool converts = out_type != g.dtype || g.fold;  // a gradient that is summed has all digits
  const BiasShape bias_shape{g.dtype, g.y.pixels(), g.y.c};
  ConvLibrary::Chosen chosen;
  if (g.fits_cudnn()) {
    auto graph = std::make_shared<OperationGraph>();
    g.add_conv(*graph, ConvPass::WeightGrad, g.y_spec());
    chosen = library.choose(g.work("W"), {{"plain", graph, {}}}, g.operands());
  }
  if (!chosen.plan && g.fold) refuse_shape(view, "cuDNN has no weight gradient for the folded images");
  // Scratch: the workspace, then the product before its conversion; the bias's sums come when both are done with.
  const size_t workspace = aligned(chosen.plan ? chosen.plan->workspace_bytes() : 0);
  const size_t product = converts ? aligned(static_cast<size_t>(g.w_elements()) * bytes_of(g.dtype)) : 0;
  const size_t sums = bias ? bias_gradient_scratch(device, bias_shape) : 0;
  const cudnnHandle_t handle = library.handle();
  const ConvLoops loops(device, view, g.dtype);
  return {chosen.plan ? chosen.name : "loops", std::max(workspace + product, sums), [=](const Bindings& bind) -> Task {
            const void *x = bind.reads[0], *dy = bind.reads[1];
            void* dw = converts ? static_cast<std::byte*>(bind.scratch) + workspace : bind.writes[0];
            std::shared_ptr<const Descriptor> pack;
            if (chosen.plan) pack = chosen.plan->pack({kX, kW, kY}, {bind.reads[0], dw, bind.reads[1]}, bind.scratch);
            return [=, plan = chosen.plan, out = bind.writes[0], db = bias ? bind.writes[1] : nullptr,
                    scratch = bind.scratch](const StepContext&) {
              if (plan) {
                plan->run(handle, *pack);
              } else {
                loops.weight_grad(x, dy, dw);
              }
              if (g.fold) {
                unfold_weight(device, *g.fold, dw, g.y.c, out, g.dtype, out_type);
              } else if (converts) {
                convert(device, dw, g.dtype, static_cast<float*>(out), g.w_elements());
              }
              if (db) bias_gradient(device, bias_shape, dy, db, bias_type, scratch);
            };
          }};
}

}  // namespace

Kernel prepare_conv(const Device& device, ConvLibrary& library, const NodeView& view) {
  switch (view.node.pass) {
    case Pass::Forward:
    case Pass::Evaluate: return prepare_forward(device, library, view);
    case Pass::InputGrad: return prepare_input_grad(device, library, view);
    case Pass::WeightGrad: return prepare_weight_grad(device, library, view);
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::cuda
