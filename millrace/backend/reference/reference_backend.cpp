#include "millrace/backend/reference/reference_backend.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend {
namespace {

constexpr std::align_val_t kAlignment{64};

template <typename T>
void store(std::span<const float> plain, void* device) {
  std::transform(plain.begin(), plain.end(), static_cast<T*>(device), [](float x) { return static_cast<T>(x); });
}

template <typename T>
void load(const void* device, std::span<float> plain) {
  const T* from = static_cast<const T*>(device);
  std::transform(from, from + plain.size(), plain.begin(), [](T x) { return static_cast<float>(x); });
}

[[noreturn]] void refuse_type(const graph::Buffer& buffer) {
  fail_input("the reference backend computes in f32 or f64, buffer \"{}\" is {}", buffer.name, name_of(buffer.dtype));
}

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const OptimizerOptions& optimizer) : optimizer_(optimizer) {}

  std::string name() const override { return "reference"; }

  size_t bytes(const graph::Graph&, const graph::Program& program, graph::BufferId buffer) override {
    const graph::Buffer& it = program.buffers[buffer];
    return static_cast<size_t>(it.shape.elements()) * bytes_of(it.dtype);
  }

  Kernel prepare(const NodeView& view) override {
    using graph::OpKind;
    switch (view.node.kind) {
      case OpKind::Conv2d: return reference::prepare_conv(view);
      case OpKind::Linear: return reference::prepare_linear(view);
      case OpKind::EmbeddingBag: return reference::prepare_embedding_bag(view);
      case OpKind::Embedding: return reference::prepare_embedding(view);
      case OpKind::Positions: return reference::prepare_positions(view);
      case OpKind::ImageTokens: return reference::prepare_image_tokens(view);
      case OpKind::SelectToken: return reference::prepare_select_token(view);
      case OpKind::SpanLogits: return reference::prepare_span_logits(view);
      case OpKind::LayerNorm: return reference::prepare_layer_norm(view);
      case OpKind::Gelu: return reference::prepare_gelu(view);
      case OpKind::Tanh: return reference::prepare_tanh(view);
      case OpKind::Attention: return reference::prepare_attention(view);
      case OpKind::BatchNorm: return reference::prepare_batch_norm(view);
      case OpKind::Relu: return reference::prepare_relu(view);
      case OpKind::MaxPool: return reference::prepare_max_pool(view);
      case OpKind::AvgPool: return reference::prepare_avg_pool(view);
      case OpKind::AdaptiveAvgPool: return reference::prepare_adaptive_avg_pool(view);
      case OpKind::Flatten: return reference::prepare_flatten(view);
      case OpKind::Dropout: return reference::prepare_dropout(view);
      case OpKind::Add: return reference::prepare_add(view);
      case OpKind::SoftmaxCrossEntropy: return reference::prepare_softmax_cross_entropy(view);
      case OpKind::Accumulate: return reference::prepare_accumulate(view);
      case OpKind::SumSquares: return reference::prepare_sum_squares(view);
      case OpKind::ClipNorm: return reference::prepare_clip_norm(view, optimizer_);
      case OpKind::SgdStep: return reference::prepare_sgd_step(view, optimizer_);
      case OpKind::AdamStep: return reference::prepare_adam_step(view, optimizer_);
      case OpKind::LambStep: return reference::prepare_lamb_step(view, optimizer_);
      case OpKind::CheckFinite:
      case OpKind::AdjustScale: break;  // only with f16
    }
    reference::refuse_pass(view);
  }

  void upload(const graph::Graph&, const graph::Program& program, graph::BufferId buffer, std::span<const float> plain,
              void* device) override {
    const graph::Buffer& it = program.buffers[buffer];
    assert(static_cast<int64_t>(plain.size()) == it.shape.elements());
    switch (it.dtype) {
      case DType::F32: return store<float>(plain, device);
      case DType::F64: return store<double>(plain, device);
      case DType::I32: return store<int32_t>(plain, device);
      case DType::U8: return store<uint8_t>(plain, device);
      case DType::F16:
      case DType::BF16: refuse_type(it);
    }
  }

  void download(const graph::Graph&, const graph::Program& program, graph::BufferId buffer, const void* device,
                std::span<float> plain) override {
    const graph::Buffer& it = program.buffers[buffer];
    assert(static_cast<int64_t>(plain.size()) == it.shape.elements());
    switch (it.dtype) {
      case DType::F32: return load<float>(device, plain);
      case DType::F64: return load<double>(device, plain);
      case DType::I32: return load<int32_t>(device, plain);
      case DType::U8: return load<uint8_t>(device, plain);
      case DType::F16:
      case DType::BF16: refuse_type(it);
    }
  }

  void* allocate(size_t bytes) override {
    void* memory = ::operator new(bytes, kAlignment);
    std::memset(memory, 0, bytes);
    return memory;
  }

  void release(void* memory, size_t) override { ::operator delete(memory, kAlignment); }

 private:
  OptimizerOptions optimizer_;
};

}  // namespace

void reference::refuse_pass(const NodeView& view) {
  fail_input("{}: the reference backend has no kernel for {} {}", view.node.name, name_of(view.node.kind),
             name_of(view.node.pass));
}

std::unique_ptr<Backend> make_reference_backend(const OptimizerOptions& optimizer) {
  return std::make_unique<ReferenceBackend>(optimizer);
}

}  // namespace millrace::backend
