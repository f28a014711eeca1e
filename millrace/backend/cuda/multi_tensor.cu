#include "millrace/backend/cuda/multi_tensor.cuh"

namespace millrace::backend::cuda::multi_tensor {
namespace {

using graph::BufferRole;

Type type_of(DType dtype) { return dtype == DType::F16 ? Type::F16 : dtype == DType::BF16 ? Type::BF16 : Type::F32; }

template <typename T>
void upload(const std::vector<T>& list, T*& to) {
  if (list.empty()) return;
  MILLRACE_CUDA(cudaMalloc(&to, list.size() * sizeof(T)));
  MILLRACE_CUDA(cudaMemcpy(to, list.data(), list.size() * sizeof(T), cudaMemcpyHostToDevice));
}

}  // namespace

Tables::Tables(const std::vector<Parameter>& parameters, const std::vector<Chunk>& chunks)
    : num_parameters_(static_cast<int>(parameters.size())), num_chunks_(static_cast<int>(chunks.size())) {
  upload(parameters, parameters_);
  upload(chunks, chunks_);
}

Tables::~Tables() {
  cudaFree(parameters_);
  cudaFree(chunks_);
}

Group::Group(const std::vector<NodeView>& views, const OptimizerOptions& options) {
  size_t reads = 0, writes = 0;
  for (const NodeView& view : views) {
    Member member{reads, writes, graph::is_step(view.node.kind), UpdateOperands(view)};
    const graph::Buffer& gradient = view.program.buffers[view.node.reads[member.is_step ? 1 : 0]];
    const bool whole = gradient.shape.rank() == 4;  // padding between channels has a gradient: zero
    Parameter& fixed = member.fixed;
    fixed.elements = whole ? stored_elements(gradient) : gradient.shape.elements();
    fixed.gradient_type = type_of(gradient.dtype);
    if (member.is_step) {
      const ParamRule rule(view, options);
      fixed.weight_type = type_of(dtype_of_read(view, 0));
      fixed.decay = rule.decay;
      fixed.rate = rule.rate;
      fixed.clears_gradient = rule.clears_gradient;
    }
    if (view.node.kind == graph::OpKind::SumSquares) {
      fixed.square = graph::kSquares + gradient.param;
      fixed.counts = view.attrs<graph::SquaresAttrs>().counts;
      if (!fixed.counts && !member.at.scales) fixed.elements = 0;  // nobody asks for its gradient
    }
    fixed.first_chunk = static_cast<int>(chunks_.size());
    for (int64_t begin = 0; begin < fixed.elements; begin += kChunk) {
      chunks_.push_back({static_cast<int>(members_.size()), begin});
    }
    fixed.num_chunks = static_cast<int>(chunks_.size()) - fixed.first_chunk;
    reads += view.node.reads.size();
    writes += view.node.writes.size();
    members_.push_back(member);
  }
}

std::shared_ptr<const Tables> Group::bind(const Bindings& bind) const {
  std::vector<Parameter> parameters;
  for (const Member& member : members_) {
    Parameter p = member.fixed;
    const auto read = [&](int i) { return i < 0 ? nullptr : bind.reads[member.first_read + static_cast<size_t>(i)]; };
    p.gradient = read(member.is_step ? 1 : 0);
    if (member.is_step) {
      p.old_weight = read(0);
      p.weight = bind.writes[member.first_write];
      p.velocity = static_cast<float*>(read(member.at.velocity));
      p.second_moment = static_cast<float*>(read(member.at.second_moment));
      p.master = static_cast<float*>(read(member.at.master));
    }
    parameters.push_back(p);
  }
  return std::make_shared<Tables>(parameters, chunks_);
}

Agreed Group::agreed(const Bindings& bind) const {
  const UpdateOperands& first = members_[0].at;  // all have the same one
  return {agreement(bind), first.scales, first.clips};
}

float* Group::agreement(const Bindings& bind) const {
  const int read = members_[0].at.agreement;
  return read < 0 ? nullptr : static_cast<float*>(bind.reads[static_cast<size_t>(read)]);
}

}  // namespace millrace::backend::cuda::multi_tensor
