// The graphs are those that cuDNN recognises as attention: their operations and the order of them are its to say, not
// ours. Queries, keys and values are read where they lie, side by side in qkv.
#include "millrace/backend/cuda/attention_cudnn.h"

#include <cmath>
#include <limits>
#include <utility>

#include "millrace/backend/cuda/conv.h"
#include "millrace/base/error.h"

namespace millrace::backend::cuda {
namespace {

enum : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kY,
  kSaved,
  kDy,
  kDqueries,
  kDkeys,
  kDvalues,
  kDqueriesSum,
  kScale,
  kLowest,
  kOne,
  kFirstInner  // and all behind: of values that are never stored
};

// What the plans read from the host.
struct Constants {
  float scale = 1, lowest = std::numeric_limits<float>::lowest(), one = 1;
};

// Writes a graph, value by value.
class Writer {
 public:
  explicit Writer(const PlainAttention& p) : p_(p) {}

  OperationGraph& graph() { return *graph_; }
  std::shared_ptr<OperationGraph> take() { return std::move(graph_); }

  // In the order N, heads, tokens, features.
  TensorSpec in_qkv(int64_t id) const { return of_head(id, 3 * p_.heads * p_.width); }
  TensorSpec in_y(int64_t id) const { return of_head(id, p_.heads * p_.width); }
  TensorSpec saved(bool is_virtual = false) const {
    TensorSpec spec = per_query(kSaved);
    spec.is_virtual = is_virtual;
    return spec;
  }
  TensorSpec scalar(int64_t id) const {
    TensorSpec spec{id, DType::F32, {1, 1, 1, 1}, {1, 1, 1, 1}};
    spec.by_value = true;
    return spec;
  }
  static TensorSpec turned(TensorSpec spec) {
    std::swap(spec.dims[2], spec.dims[3]);
    std::swap(spec.strides[2], spec.strides[3]);
    return spec;
  }

  // Values that are never stored.
  TensorSpec scores(DType dtype = DType::F32) {
    const int64_t l = p_.length;
    return inner({next_++, dtype, {p_.rows, p_.heads, l, l}, {p_.heads * l * l, l * l, l, 1}});
  }
  TensorSpec row() { return inner(per_query(next_++)); }
  TensorSpec product_of_rows() {  // dy y
    const int64_t l = p_.length, w = p_.width;
    return inner({next_++, DType::F32, {p_.rows, p_.heads, l, w}, {p_.heads * l * w, l * w, w, 1}});
  }

  TensorSpec apply(cudnnPointwiseMode_t mode, const TensorSpec& x, const TensorSpec& other) {
    const TensorSpec y = x.dims[3] == 1 ? row() : scores();
    graph_->add_pointwise(mode, x, &other, y);
    return y;
  }
  TensorSpec apply(cudnnPointwiseMode_t mode, const TensorSpec& x) {
    const TensorSpec y = x.dims[3] == 1 ? row() : scores();
    graph_->add_pointwise(mode, x, nullptr, y);
    return y;
  }
  TensorSpec reduce(cudnnReduceTensorOp_t mode, const TensorSpec& x) {
    const TensorSpec y = row();
    graph_->add_reduction(mode, x, y);
    return y;
  }
  TensorSpec turn(const TensorSpec& x, DType dtype) {
    TensorSpec y = turned(x);
    y.id = next_++;
    y.dtype = dtype;
    y.is_virtual = true;
    graph_->add_reshape(x, y);
    return y;
  }

  // Scaled, and the lowest number where a query does not see a key.
  TensorSpec masked_scores() {
    const TensorSpec product = scores();
    graph_->add_matmul(in_qkv(kQueries), turned(in_qkv(kKeys)), product);
    const TensorSpec scaled = apply(CUDNN_POINTWISE_MUL, product, scalar(kScale));
    if (!p_.causal) return scaled;
    const TensorSpec query = scores(DType::I32), key = scores(DType::I32), seen = scores(DType::U8), all = scores();
    graph_->add_index(2, scaled, query);
    graph_->add_index(3, scaled, key);
    graph_->add_pointwise(CUDNN_POINTWISE_CMP_GE, query, &key, seen);
    graph_->add_select(scaled, scalar(kLowest), seen, all);
    return all;
  }

 private:
  TensorSpec of_head(int64_t id, int64_t features) const {
    return {id, p_.dtype, {p_.rows, p_.heads, p_.length, p_.width}, {p_.length * features, p_.width, features, 1}};
  }
  TensorSpec per_query(int64_t id) const {
    return {id, DType::F32, {p_.rows, p_.heads, p_.length, 1}, {p_.heads * p_.length, p_.length, 1, 1}};
  }
  static TensorSpec inner(TensorSpec spec) {
    spec.is_virtual = true;
    return spec;
  }

  const PlainAttention p_;
  std::shared_ptr<OperationGraph> graph_ = std::make_shared<OperationGraph>();
  int64_t next_ = kFirstInner;
};

std::shared_ptr<OperationGraph> forward_graph(const PlainAttention& p, bool saves) {
  Writer write(p);
  const TensorSpec scores = write.masked_scores();
  const TensorSpec largest = write.reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const TensorSpec power = write.apply(CUDNN_POINTWISE_EXP, write.apply(CUDNN_POINTWISE_SUB, scores, largest));
  const TensorSpec total = write.reduce(CUDNN_REDUCE_TENSOR_ADD, power);
  const TensorSpec log = write.apply(CUDNN_POINTWISE_LOG, total);
  write.graph().add_pointwise(CUDNN_POINTWISE_ADD, largest, &log, write.saved(!saves));
  const TensorSpec weights = write.scores(p.dtype);
  write.graph().add_pointwise(CUDNN_POINTWISE_DIV, power, &total, weights);
  write.graph().add_matmul(weights, write.in_qkv(kValues), write.in_y(kY));
  return write.take();
}

// The gradient of the queries is a sum over blocks of keys: either each is kept and they are summed in order, or they
// are added to zeros in whatever order they come.
std::shared_ptr<OperationGraph> grad_graph(const PlainAttention& p, bool in_any_order) {
  Writer write(p);
  const TensorSpec dy = write.in_y(kDy), y = write.in_y(kY), product = write.product_of_rows();
  write.graph().add_pointwise(CUDNN_POINTWISE_MUL, dy, &y, product);
  const TensorSpec along =
      write.apply(CUDNN_POINTWISE_MUL, write.reduce(CUDNN_REDUCE_TENSOR_ADD, product), write.scalar(kOne));

  const TensorSpec scores = write.masked_scores();
  const TensorSpec weights = write.apply(CUDNN_POINTWISE_EXP, write.apply(CUDNN_POINTWISE_SUB, scores, write.saved()));
  write.graph().add_matmul(write.turn(weights, p.dtype), dy, write.in_qkv(kDvalues));

  const TensorSpec dweights = write.scores();
  write.graph().add_matmul(dy, Writer::turned(write.in_qkv(kValues)), dweights);
  const TensorSpec kept = write.apply(CUDNN_POINTWISE_MUL, dweights, write.scalar(kOne));
  const TensorSpec centred = write.apply(CUDNN_POINTWISE_SUB, kept, along);
  const TensorSpec weighted = write.apply(CUDNN_POINTWISE_MUL, centred, weights);
  const TensorSpec dscores = write.apply(CUDNN_POINTWISE_MUL, weighted, write.scalar(kScale));
  write.graph().add_matmul(write.turn(dscores, p.dtype), write.in_qkv(kQueries), write.in_qkv(kDkeys));
  const TensorSpec keys = write.turn(Writer::turned(write.in_qkv(kKeys)), p.dtype);
  if (!in_any_order) {
    write.graph().add_matmul(dscores, keys, write.in_qkv(kDqueries));
    return write.take();
  }
  TensorSpec sum = write.product_of_rows();
  sum.id = kDqueriesSum;
  sum.is_virtual = false;
  sum.in_fragments = true;
  write.graph().add_matmul(dscores, keys, sum);
  write.graph().add_pointwise(CUDNN_POINTWISE_IDENTITY, sum, nullptr, write.in_qkv(kDqueries));
  return write.take();
}

std::string work_of(const PlainAttention& p, const char* pass) {
  return fmt::format("attention {} {} {}x{} heads {}x{}{}", pass, name_of(p.dtype), p.rows, p.length, p.heads, p.width,
                     p.causal ? " causal" : "");
}

}  // namespace

std::optional<Kernel> prepare_cudnn_attention_forward(ConvLibrary& library, const PlainAttention& p, bool saves) {
  const auto constants = std::make_shared<Constants>();
  constants->scale = 1 / std::sqrt(static_cast<float>(p.width));
  const int64_t features = p.heads * p.width, tokens = p.rows * p.length;
  std::vector<ConvLibrary::Operand> operands{{kQueries, tokens * 3 * features, p.dtype},
                                             {kKeys, tokens * 3 * features, p.dtype},
                                             {kValues, tokens * 3 * features, p.dtype},
                                             {kY, tokens * features, p.dtype},
                                             {kScale, 1, DType::F32, &constants->scale}};
  if (p.causal) operands.push_back({kLowest, 1, DType::F32, &constants->lowest});
  if (saves) operands.push_back({kSaved, tokens * p.heads, DType::F32});
  const ConvLibrary::Way way{"fused", forward_graph(p, saves), {}, operands.size()};
  const ConvLibrary::Chosen chosen = library.choose(work_of(p, saves ? "F" : "E"), {way}, operands);
  if (!chosen.plan) return std::nullopt;
  const cudnnHandle_t handle = library.handle();
  return Kernel{"cuDNN " + chosen.name, chosen.plan->workspace_bytes(), [=](const Bindings& at) -> Task {
                  auto* qkv = static_cast<std::byte*>(at.reads[0]);
                  const size_t next = static_cast<size_t>(features) * bytes_of(p.dtype);
                  std::vector<int64_t> ids{kQueries, kKeys, kValues, kY, kScale};
                  std::vector<void*> memory{qkv, qkv + next, qkv + 2 * next, at.writes[0], &constants->scale};
                  if (p.causal) ids.push_back(kLowest), memory.push_back(&constants->lowest);
                  if (saves) ids.push_back(kSaved), memory.push_back(at.writes[1]);
                  const auto pack = chosen.plan->pack(ids, memory, at.scratch);
                  // The pack points to the constants.
                  return
                      [handle, pack, constants, plan = chosen.plan](const StepContext&) { plan->run(handle, *pack); };
                }};
}

std::optional<Kernel> prepare_cudnn_attention_grad(const Device& device, ConvLibrary& library,
                                                   const PlainAttention& p) {
  const auto constants = std::make_shared<Constants>();
  constants->scale = 1 / std::sqrt(static_cast<float>(p.width));
  const int64_t features = p.heads * p.width, tokens = p.rows * p.length;
  std::vector<ConvLibrary::Operand> operands{
      {kQueries, tokens * 3 * features, p.dtype},  {kKeys, tokens * 3 * features, p.dtype},
      {kValues, tokens * 3 * features, p.dtype},   {kY, tokens * features, p.dtype},
      {kSaved, tokens * p.heads, DType::F32},      {kDy, tokens * features, p.dtype},
      {kDqueries, tokens * 3 * features, p.dtype}, {kDkeys, tokens * 3 * features, p.dtype},
      {kDvalues, tokens * 3 * features, p.dtype},  {kScale, 1, DType::F32, &constants->scale},
      {kOne, 1, DType::F32, &constants->one}};
  if (p.causal) operands.push_back({kLowest, 1, DType::F32, &constants->lowest});
  std::vector<ConvLibrary::Way> ways{{"in order", grad_graph(p, false), {}, operands.size()}};
  const size_t sum_at = operands.size(), sum_bytes = sizeof(float) * static_cast<size_t>(tokens * features);
  operands.push_back({kDqueriesSum, tokens * features, DType::F32});
  if (!library.deterministic()) {
    ways.push_back({"any order", grad_graph(p, true),
                    [=](const std::vector<void*>& memory) {
                      MILLRACE_CUDA(cudaMemsetAsync(memory[sum_at], 0, sum_bytes, device.stream));
                    },
                    operands.size()});
  }
  const ConvLibrary::Chosen chosen = library.choose(work_of(p, "I"), ways, operands);
  if (!chosen.plan) return std::nullopt;
  const bool adds = ways[chosen.way].name == "any order";
  const size_t workspace = (chosen.plan->workspace_bytes() + 255) / 256 * 256;
  const cudnnHandle_t handle = library.handle();
  return Kernel{
      "cuDNN " + chosen.name, workspace + (adds ? sum_bytes : 0), [=](const Bindings& at) -> Task {
        auto *qkv = static_cast<std::byte*>(at.reads[1]), *dqkv = static_cast<std::byte*>(at.writes[0]);
        std::byte* sum = static_cast<std::byte*>(at.scratch) + workspace;
        const size_t next = static_cast<size_t>(features) * bytes_of(p.dtype);
        std::vector<int64_t> ids{kQueries, kKeys, kValues, kY, kSaved, kDy, kDqueries, kDkeys, kDvalues, kScale, kOne};
        std::vector<void*> memory{qkv,  qkv + next,  qkv + 2 * next,  at.reads[2],       at.reads[3],    at.reads[0],
                                  dqkv, dqkv + next, dqkv + 2 * next, &constants->scale, &constants->one};
        if (p.causal) ids.push_back(kLowest), memory.push_back(&constants->lowest);
        if (adds) ids.push_back(kDqueriesSum), memory.push_back(sum);
        const auto pack = chosen.plan->pack(ids, memory, at.scratch);
        // The pack points to the constants.
        return [=, plan = chosen.plan, keeps = constants](const StepContext&) {
          if (adds) MILLRACE_CUDA(cudaMemsetAsync(sum, 0, sum_bytes, device.stream));
          plan->run(handle, *pack);
        };
      }};
}

}  // namespace millrace::backend::cuda
