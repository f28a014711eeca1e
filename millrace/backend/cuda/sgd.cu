// Stochastic gradient descent over many parameters in one launch: decay, momentum, master and working weight in one
// pass. With a loss scale, gradients are checked in a launch before it and an update that overflowed changes nothing.
#include <algorithm>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::BufferRole;

constexpr int kThreads = 256;
constexpr int64_t kChunk = 16384;  // elements that a block takes at once

enum class Type : uint8_t { F32, F16, BF16 };
Type type_of(DType dtype) { return dtype == DType::F16 ? Type::F16 : dtype == DType::BF16 ? Type::BF16 : Type::F32; }

// One parameter. Without a master, the weight itself is read and written in f32.
struct Parameter {
  const void* old_weight;
  void* weight;
  void* gradient;
  float* velocity;
  float* master;
  int64_t elements;
  float decay;
  Type weight_type, gradient_type;
  bool clears_gradient;
};
// A block's piece of one parameter.
struct Chunk {
  int parameter;
  int64_t begin;
};

struct Rule {
  float momentum;
  bool nesterov, decoupled;
};

constexpr int kEach = 4;  // elements of a thread at a time

struct Four {
  float at[kEach];
};

__device__ Four load_four(const void* from, int64_t i, Type type) {
  Four four;
  if (type == Type::F32) {
    const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(from) + i);
    four = {{v.x, v.y, v.z, v.w}};
  } else {
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(from) + i);
    const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const auto bits = static_cast<unsigned short>(words[k / 2] >> (16 * (k % 2)));
      four.at[k] = type == Type::F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float(uint32_t{bits} << 16);
    }
  }
  return four;
}

__device__ void store_four(void* to, int64_t i, Type type, const Four& four) {
  if (type == Type::F32) {
    *reinterpret_cast<float4*>(static_cast<float*>(to) + i) = {four.at[0], four.at[1], four.at[2], four.at[3]};
    return;
  }
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const unsigned short bits = type == Type::F16 ? __half_as_ushort(__float2half_rn(four.at[k]))
                                                  : __bfloat16_as_ushort(__float2bfloat16_rn(four.at[k]));
    words[k / 2] |= uint32_t{bits} << (16 * (k % 2));
  }
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(to) + i) = {words[0], words[1]};
}

__global__ void __launch_bounds__(kThreads) sgd_step(const Parameter* parameters, const Chunk* chunks, Rule rule,
                                                     const StepContext* context, const float* loss_scale) {
  const Chunk chunk = chunks[blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const float rate = context->learning_rate;
  const float unscale = loss_scale ? loss_scale[graph::kInverseScale] : 1.0f;
  const bool skips = loss_scale && loss_scale[graph::kOverflow] != 0;
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
    const Four gradient = load_four(p.gradient, i, p.gradient_type);
    Four weight = p.master ? load_four(p.master, i, Type::F32) : load_four(p.old_weight, i, p.weight_type);
    if (!skips) {
      Four velocity = {};
      if (p.velocity) velocity = load_four(p.velocity, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (i + k >= p.elements) break;  // nobody writes the gradient of a plain parameter's padding
        float step = gradient.at[k] * unscale;
        float w = weight.at[k];
        if (rule.decoupled) {
          w *= 1 - rate * p.decay;
        } else {
          step += p.decay * w;
        }
        if (p.velocity) {
          const float v = rule.momentum * velocity.at[k] + step;
          step = rule.nesterov ? step + rule.momentum * v : v;
          velocity.at[k] = v;
        }
        weight.at[k] = w - rate * step;
      }
      if (p.velocity) store_four(p.velocity, i, Type::F32, velocity);
      if (p.master) store_four(p.master, i, Type::F32, weight);
    }
    store_four(p.weight, i, p.weight_type, weight);  // the next version, whether or not it is another memory
    if (p.clears_gradient) store_four(p.gradient, i, p.gradient_type, Four{});
  }
}

// Whether one of two sixteen-bit numbers has the exponent of infinity and NaN.
__device__ bool has_exponent(uint32_t pair, uint32_t exponent) {
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// The chunk's loads are all on their way together: there is nothing else to do meanwhile.
__device__ bool finds_bad_pairs(const uint16_t* gradient, int64_t begin, int64_t end, uint32_t exponent) {
  constexpr int kNumbers = 8, kLoads = kChunk / (kThreads * kNumbers);
  uint4 words[kLoads];
  bool bad = false;
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int64_t i = begin + (j * kThreads + threadIdx.x) * kNumbers;
    words[j] = {};
    if (i + kNumbers <= end) {
      words[j] = __ldcg(reinterpret_cast<const uint4*>(gradient + i));
    } else {
      for (int64_t k = i; k < end; ++k) bad |= has_exponent(gradient[k], exponent);
    }
  }
#pragma unroll
  for (const uint4& w : words) {
    for (uint32_t pair : {w.x, w.y, w.z, w.w}) bad |= has_exponent(pair, exponent);
  }
  return bad;
}

// Counts blocks that found something: only zero or not zero is read. From the last parameter to the first, so that the
// update finds those it begins with in the cache.
__global__ void __launch_bounds__(kThreads)
    check_finite(const Parameter* parameters, const Chunk* chunks, float* loss_scale) {
  const Chunk chunk = chunks[gridDim.x - 1 - blockIdx.x];
  const Parameter p = parameters[chunk.parameter];
  const int64_t end = min(chunk.begin + kChunk, p.elements);
  bool bad = false;
  if (p.gradient_type == Type::F32) {
    for (int64_t i = chunk.begin + threadIdx.x * kEach; i < end; i += kThreads * kEach) {
      const Four gradient = load_four(p.gradient, i, Type::F32);
#pragma unroll
      for (int k = 0; k < kEach; ++k) bad |= i + k < p.elements && !isfinite(gradient.at[k]);
    }
  } else {
    const uint32_t exponent = p.gradient_type == Type::F16 ? 0x7C00u : 0x7F80u;
    bad = finds_bad_pairs(static_cast<const uint16_t*>(p.gradient), chunk.begin, end, exponent);
  }
  if (__syncthreads_or(bad) && threadIdx.x == 0) atomicAdd(loss_scale + graph::kOverflow, 1.0f);
}

__global__ void adjust_scale(float* loss_scale, ScaleRule rule) {
  float scale = loss_scale[graph::kScale];
  if (loss_scale[graph::kOverflow] != 0) {
    scale = fmaxf(scale / rule.factor, rule.floor);
    loss_scale[graph::kGoodSteps] = 0;
    loss_scale[graph::kSkippedSteps] += 1;
  } else if (++loss_scale[graph::kGoodSteps] >= static_cast<float>(rule.interval)) {
    if (isfinite(scale * rule.factor)) scale *= rule.factor;
    loss_scale[graph::kGoodSteps] = 0;
  }
  loss_scale[graph::kScale] = scale;
  loss_scale[graph::kInverseScale] = 1 / scale;
  loss_scale[graph::kOverflow] = 0;
}

// The tables a launch reads, in device memory for as long as the task lives.
struct Tables {
  Parameter* parameters = nullptr;
  Chunk* chunks = nullptr;
  int num_chunks = 0;

  Tables(const std::vector<Parameter>& list) {
    std::vector<Chunk> pieces;
    for (size_t p = 0; p < list.size(); ++p) {
      for (int64_t begin = 0; begin < list[p].elements; begin += kChunk) pieces.push_back({static_cast<int>(p), begin});
    }
    num_chunks = static_cast<int>(pieces.size());
    upload(list, parameters);
    upload(pieces, chunks);
  }
  ~Tables() {
    cudaFree(parameters);
    cudaFree(chunks);
  }
  Tables(const Tables&) = delete;

  template <typename T>
  static void upload(const std::vector<T>& list, T*& to) {
    MILLRACE_CUDA(cudaMalloc(&to, list.size() * sizeof(T)));
    MILLRACE_CUDA(cudaMemcpy(to, list.data(), list.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
};

// Where the operands of one node begin among those of all, and what they are.
struct Operands {
  size_t first_read = 0, first_write = 0;
  int velocity = -1, master = -1, loss_scale = -1;  // reads
  Parameter fixed{};
};

std::vector<Operands> operands_of(const std::vector<NodeView>& views, const SgdOptions& sgd) {
  std::vector<Operands> all;
  size_t reads = 0, writes = 0;
  for (const NodeView& view : views) {
    Operands operands;
    operands.first_read = reads;
    operands.first_write = writes;
    const bool step = view.node.kind == graph::OpKind::SgdStep;
    for (int i = 0; i < view.num_reads(); ++i) {
      const BufferRole role = view.program.buffers[view.node.reads[i]].role;
      if (role == BufferRole::Velocity) operands.velocity = i;
      if (role == BufferRole::Master) operands.master = i;
      if (role == BufferRole::LossScale) operands.loss_scale = i;
    }
    const graph::Buffer& gradient = view.program.buffers[view.node.reads[step ? 1 : 0]];
    const bool whole = gradient.shape.rank() == 4;  // padding between channels has a gradient: zero
    operands.fixed.elements = whole ? stored_elements(gradient) : gradient.shape.elements();
    operands.fixed.gradient_type = type_of(gradient.dtype);
    if (step) {
      operands.fixed.weight_type = type_of(dtype_of_read(view, 0));
      operands.fixed.decay = sgd.decay_for(view.param_role(view.node.reads[0]));
      operands.fixed.clears_gradient = gradient.role == BufferRole::GradientSum;
    }
    reads += view.node.reads.size();
    writes += view.node.writes.size();
    all.push_back(operands);
  }
  return all;
}

}  // namespace

Kernel prepare_sgd(const Device& device, const std::vector<NodeView>& views, const SgdOptions& sgd) {
  const Rule rule{sgd.momentum, sgd.nesterov, sgd.decoupled};
  return {"many at once", 0, [=, all = operands_of(views, sgd)](const Bindings& bind) -> Task {
            std::vector<Parameter> parameters;
            for (const Operands& operands : all) {
              Parameter p = operands.fixed;
              auto read = [&](int i) { return bind.reads[operands.first_read + static_cast<size_t>(i)]; };
              p.old_weight = read(0);
              p.gradient = read(1);
              p.weight = bind.writes[operands.first_write];
              if (operands.velocity >= 0) p.velocity = static_cast<float*>(read(operands.velocity));
              if (operands.master >= 0) p.master = static_cast<float*>(read(operands.master));
              parameters.push_back(p);
            }
            const Operands& first = all[0];
            const float* loss_scale =
                first.loss_scale < 0 ? nullptr
                                     : static_cast<const float*>(bind.reads[static_cast<size_t>(first.loss_scale)]);
            auto tables = std::make_shared<Tables>(parameters);
            return [=](const StepContext&) {
              sgd_step<<<tables->num_chunks, kThreads, 0, device.stream>>>(tables->parameters, tables->chunks, rule,
                                                                           device.context, loss_scale);
              MILLRACE_LAUNCHED("sgd_step");
            };
          }};
}

Kernel prepare_check_finite(const Device& device, const std::vector<NodeView>& views) {
  return {"many at once", 0, [=, all = operands_of(views, {})](const Bindings& bind) -> Task {
            std::vector<Parameter> parameters;
            for (const Operands& operands : all) {
              Parameter p = operands.fixed;
              p.gradient = bind.reads[operands.first_read];
              parameters.push_back(p);
            }
            auto* loss_scale = static_cast<float*>(bind.writes[0]);
            auto tables = std::make_shared<Tables>(parameters);
            return [=](const StepContext&) {
              check_finite<<<tables->num_chunks, kThreads, 0, device.stream>>>(tables->parameters, tables->chunks,
                                                                               loss_scale);
              MILLRACE_LAUNCHED("check_finite");
            };
          }};
}

Kernel prepare_adjust_scale(const Device& device, const ScaleRule& rule) {
  return {"one thread", 0, [=](const Bindings& bind) -> Task {
            auto* loss_scale = bind.write<float>(0);
            return [=](const StepContext&) {
              adjust_scale<<<1, 1, 0, device.stream>>>(loss_scale, rule);
              MILLRACE_LAUNCHED("adjust_scale");
            };
          }};
}

}  // namespace millrace::backend::cuda
