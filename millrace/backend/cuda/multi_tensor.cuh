// Many parameters in one launch: every block takes a chunk of one of them. What steps of optimizers and the checks
// before them have in common: the tables that such a launch reads, four elements of any type, and sums over a block.
#pragma once

#include <memory>
#include <vector>

#include "millrace/backend/cuda/vector.cuh"
#include "millrace/backend/optimizer.h"

namespace millrace::backend::cuda::multi_tensor {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 16384;  // elements that a block takes at once
constexpr int kEach = 4;           // elements of a thread at a time

enum class Type : uint8_t { F32, F16, BF16 };

// One parameter; null where it has none of it. Without a master, the weight itself is read and written in f32.
struct Parameter {
  const void* old_weight;
  void* weight;
  void* gradient;
  float* velocity;
  float* second_moment;
  float* master;
  int64_t elements;
  int first_chunk, num_chunks;
  float decay, rate;
  int square;  // SumSquares: its place in the agreement
  bool counts;
  Type weight_type, gradient_type;
  bool clears_gradient;
};
// A block's piece of one parameter.
struct Chunk {
  int parameter;
  int64_t begin;
};

// What a launch reads, in device memory for as long as the task lives.
class Tables {
 public:
  Tables(const std::vector<Parameter>& parameters, const std::vector<Chunk>& chunks);
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  const Parameter* parameters() const { return parameters_; }
  const Chunk* chunks() const { return chunks_; }
  int num_parameters() const { return num_parameters_; }
  int num_chunks() const { return num_chunks_; }

 private:
  Parameter* parameters_ = nullptr;
  Chunk* chunks_ = nullptr;
  int num_parameters_ = 0, num_chunks_ = 0;
};

// What a step has to know of all gradients. Without an agreement: nothing.
struct Agreed {
  const float* fields = nullptr;
  bool scales = false, clips = false;

  __device__ float gradient_factor() const {
    return (scales ? fields[graph::kInverseScale] : 1.0f) * (clips ? fields[graph::kClip] : 1.0f);
  }
  __device__ bool skips() const { return scales && fields[graph::kOverflow] != 0; }
  // With this one, and without those that were left out.
  __device__ float steps(const StepContext& context) const {
    return static_cast<float>(context.update + 1) - (scales ? fields[graph::kSkippedSteps] : 0.0f);
  }
};

// Nodes of one kind, each of another parameter, whose operands come one node after another.
class Group {
 public:
  Group(const std::vector<NodeView>& views, const OptimizerOptions& options);

  size_t num_parameters() const { return members_.size(); }
  size_t num_chunks() const { return chunks_.size(); }
  std::shared_ptr<const Tables> bind(const Bindings& bind) const;
  Agreed agreed(const Bindings& bind) const;
  float* agreement(const Bindings& bind) const;

 private:
  struct Member {
    size_t first_read = 0, first_write = 0;
    bool is_step = false;
    UpdateOperands at;
    Parameter fixed{};
  };
  std::vector<Member> members_;
  std::vector<Chunk> chunks_;
};

struct Four {
  float at[kEach];
};

__device__ inline Four load_four(const void* from, int64_t i, Type type) {
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

__device__ inline void store_four(void* to, int64_t i, Type type, const Four& four) {
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

__device__ inline Four load_weight(const Parameter& p, int64_t i) {
  return p.master ? load_four(p.master, i, Type::F32) : load_four(p.old_weight, i, p.weight_type);
}

// Over all kThreads of a block, in an order that is always the same; thread 0 has the sum.
__device__ inline double block_sum(double value) {
  constexpr int kWarp = 32;
  __shared__ double of_warp[kThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, offset);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / kWarp; ++warp) value += of_warp[warp];
  }
  __syncthreads();  // the next sum takes the same memory
  return value;
}

}  // namespace millrace::backend::cuda::multi_tensor
