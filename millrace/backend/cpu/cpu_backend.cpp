#include "millrace/backend/cpu/cpu_backend.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "millrace/backend/cpu/chooser.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/base/error.h"

namespace millrace::backend {
namespace {

using cpu::Desc;
using graph::BufferId;
using graph::BufferRole;
using graph::Graph;
using graph::OpKind;
using graph::Program;

// Element by element, where an element is not a float.
template <typename From, typename To>
void convert(const From* from, size_t count, To* to) {
  std::transform(from, from + count, to, [](From x) { return static_cast<To>(x); });
}

class CpuBackend : public Backend {
 public:
  CpuBackend(const CpuOptions& options, const OptimizerOptions& optimizer)
      : dnn_(std::make_shared<cpu::OneDnn>()),
        chooser_(options.choices_file, options.on_measure),
        options_(options),
        optimizer_(optimizer) {
    if (options.threads > 0) omp_set_num_threads(options.threads);
  }

  std::string name() const override { return "cpu"; }

  size_t bytes(const Graph& graph, const Program& program, BufferId id) override {
    const graph::Buffer& buffer = program.buffers[id];
    if (buffer.dtype == DType::F32) return desc(graph, program, id).get_size();
    // The argmax of a pooling follows the blocks of its output, a byte instead of a float.
    if (buffer.dtype == DType::U8) return cpu::blocked_desc(buffer.shape).get_size() / sizeof(float);
    return static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype);
  }

  Kernel prepare(const NodeView& view) override {
    const int64_t floats = stored_floats(view, view.node.writes[0]);
    switch (view.node.kind) {
      case OpKind::Conv2d: return prepare_conv(dnn_, chooser_, options_.convolution, view, layouts(view));
      case OpKind::Linear: return prepare_linear(dnn_, view, layouts(view));
      case OpKind::EmbeddingBag: return cpu::prepare_embedding_bag(view);
      case OpKind::Embedding: return cpu::prepare_embedding(view);
      case OpKind::Positions: return cpu::prepare_positions(view);
      case OpKind::ImageTokens: return cpu::prepare_image_tokens(view);
      case OpKind::SelectToken: return cpu::prepare_select_token(view);
      case OpKind::SpanLogits: return cpu::prepare_span_logits(view);
      case OpKind::LayerNorm: return cpu::prepare_layer_norm(view);
      case OpKind::Gelu: return cpu::prepare_gelu(view);
      case OpKind::Tanh: return cpu::prepare_tanh(view);
      case OpKind::Attention: return cpu::prepare_attention(view);
      case OpKind::Flatten: return prepare_flatten(dnn_, view, layouts(view));
      case OpKind::BatchNorm: return cpu::prepare_batch_norm(view);
      case OpKind::MaxPool:
      case OpKind::AvgPool:
      case OpKind::AdaptiveAvgPool: return cpu::prepare_pool(view);
      case OpKind::SoftmaxCrossEntropy: return cpu::prepare_loss(view);
      case OpKind::Dropout: return cpu::prepare_dropout(view);
      case OpKind::Relu: return cpu::prepare_relu(view, floats);
      case OpKind::Add:
      case OpKind::Accumulate: return cpu::prepare_add(view, floats);
      case OpKind::SumSquares: return cpu::prepare_sum_squares(view, stored_floats(view, view.node.reads[0]));
      case OpKind::ClipNorm: return cpu::prepare_clip_norm(view, optimizer_);
      case OpKind::SgdStep: return cpu::prepare_sgd(view, floats, optimizer_);
      case OpKind::AdamStep: return cpu::prepare_adam(view, floats, optimizer_);
      case OpKind::LambStep: return cpu::prepare_lamb(view, floats, optimizer_);
      case OpKind::CheckFinite:
      case OpKind::AdjustScale: break;  // only with f16
    }
    fail_run("no CPU kernel for {}", name_of(view.node.kind));
  }

  void upload(const Graph& graph, const Program& program, BufferId id, std::span<const float> plain,
              void* device) override {
    const graph::Buffer& buffer = program.buffers[id];
    switch (buffer.dtype) {
      case DType::F32: {
        const Desc stored = desc(graph, program, id);
        return cpu::reorder_now(*dnn_, plain_like(stored), plain.data(), stored, device);
      }
      case DType::F64: return convert(plain.data(), plain.size(), static_cast<double*>(device));
      case DType::I32: return convert(plain.data(), plain.size(), static_cast<int32_t*>(device));
      case DType::U8: {
        std::vector<float> blocked(bytes(graph, program, id));
        cpu::reorder_now(*dnn_, cpu::plain_desc(buffer.shape), plain.data(), cpu::blocked_desc(buffer.shape),
                         blocked.data());
        return convert(blocked.data(), blocked.size(), static_cast<uint8_t*>(device));
      }
      case DType::F16:
      case DType::BF16: fail_input("the CPU computes in f32, buffer \"{}\" is {}", buffer.name, name_of(buffer.dtype));
    }
  }

  void download(const Graph& graph, const Program& program, BufferId id, const void* device,
                std::span<float> plain) override {
    const graph::Buffer& buffer = program.buffers[id];
    switch (buffer.dtype) {
      case DType::F32: {
        const Desc stored = desc(graph, program, id);
        return cpu::reorder_now(*dnn_, stored, device, plain_like(stored), plain.data());
      }
      case DType::F64: return convert(static_cast<const double*>(device), plain.size(), plain.data());
      case DType::I32: return convert(static_cast<const int32_t*>(device), plain.size(), plain.data());
      case DType::U8: {
        std::vector<float> blocked(bytes(graph, program, id));
        convert(static_cast<const uint8_t*>(device), blocked.size(), blocked.data());
        return cpu::reorder_now(*dnn_, cpu::blocked_desc(buffer.shape), blocked.data(), cpu::plain_desc(buffer.shape),
                                plain.data());
      }
      case DType::F16:
      case DType::BF16: fail_input("the CPU computes in f32, buffer \"{}\" is {}", buffer.name, name_of(buffer.dtype));
    }
  }

  bool take(const Foreign& from, const Graph& graph, const Program& program, BufferId id, void* device) override {
    auto* other = dynamic_cast<CpuBackend*>(&from.backend);
    if (!other || program.buffers[id].dtype != DType::F32 || from.program.buffers[from.buffer].dtype != DType::F32) {
      return false;
    }
    if (other->desc(from.graph, from.program, from.buffer) != desc(graph, program, id)) return false;
    std::memcpy(device, from.memory, bytes(graph, program, id));
    return true;
  }

  void* allocate(size_t bytes) override {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);  // fewer TLB misses; a hint, so its failure does not matter
    return memory;
  }
  void release(void* memory, size_t bytes) override { munmap(memory, bytes); }

 private:
  int64_t stored_floats(const NodeView& view, BufferId id) {
    return static_cast<int64_t>(bytes(view.graph, view.program, id) / sizeof(float));
  }

  // How a float buffer lies in memory.
  Desc desc(const Graph& graph, const Program& program, BufferId id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (buffer.shape.rank() != 4 || buffer.role == BufferRole::Input) return cpu::plain_desc(buffer.shape);
    if (buffer.param != graph::kNone) return weight_desc(graph, buffer.param);
    return cpu::blocked_desc(buffer.shape);
  }

  Desc weight_desc(const Graph& graph, graph::ParamId param) {
    for (const graph::Op& op : graph.ops) {
      if (op.kind != OpKind::Conv2d || op.params[0] != param) continue;
      const Shape& input = graph.values[op.inputs[0]].shape;
      const Desc x = op.inputs[0] == graph.features ? cpu::plain_desc(input) : cpu::blocked_desc(input);
      return conv_weight_desc(*dnn_, input, x, graph.params[param].shape, std::get<graph::Conv2dAttrs>(op.attrs));
    }
    return cpu::plain_desc(graph.params[param].shape);
  }

  static Desc plain_like(const Desc& desc) {
    Shape shape;
    for (int64_t extent : desc.dims()) shape.append(extent);
    return cpu::plain_desc(shape);
  }

  cpu::Layouts layouts(const NodeView& view) {
    cpu::Layouts layouts;
    for (BufferId id : view.node.reads) layouts.reads.push_back(desc(view.graph, view.program, id));
    for (BufferId id : view.node.writes) layouts.writes.push_back(desc(view.graph, view.program, id));
    return layouts;
  }

  std::shared_ptr<cpu::OneDnn> dnn_;
  cpu::Chooser chooser_;
  CpuOptions options_;
  OptimizerOptions optimizer_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options, const OptimizerOptions& optimizer) {
  return std::make_unique<CpuBackend>(options, optimizer);
}

}  // namespace millrace::backend
