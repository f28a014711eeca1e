// CPU kernels against the reference backend: the same node, the same random numbers, over many shapes drawn from a
// fixed stream. Beyond what node_harness.h compares, whatever a kernel writes starts as NaN with its padding, as
// memory of an arena would, and the padding channels must come out as zero: every kernel relies on the one before.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "backend/node_harness.h"
#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/reference/reference_backend.h"

namespace millrace::backend::harness {

class Dice : public ShapeDice {
 public:
  using ShapeDice::ShapeDice;
  int64_t channels() { return pick({1, 3, 5, 16, 17, 32, 48}); }
};

// Channels per block of the blocked layout.
inline int64_t block_of(Backend& cpu) {
  const OneNode one = build_as_emitted({.kind = OpKind::Relu, .x = {1, 1, 1, 1}});
  return static_cast<int64_t>(cpu.bytes(one.graph, one.program, 0) / sizeof(float));
}

inline void expect_zero_padding(Backend& cpu, const OneNode& one, const NodeRun& run) {
  const int64_t block = block_of(cpu);
  for (BufferId id : one.node().writes) {
    const graph::Buffer& buffer = one.buffer(id);
    if (buffer.shape.rank() != 4 || buffer.dtype != DType::F32 || buffer.param != graph::kNone) continue;
    const Shape& s = buffer.shape;
    const int64_t blocks = (s[1] + block - 1) / block, pixels = s[2] * s[3];
    const auto* data = static_cast<const float*>(run.memory(id));
    for (int64_t i = 0; i < s[0] * blocks * pixels * block; ++i) {
      const int64_t channel = i / (pixels * block) % blocks * block + i % block;
      if (channel >= s[1]) {
        ASSERT_EQ(data[i], 0.0f) << buffer.name << ": padding channel " << channel << " of " << s.str();
      }
    }
  }
}

inline Plain run_on_dirty_memory(Backend& cpu, const OneNode& one, const StepContext& context, const Plain& plain) {
  NodeRun run(cpu, one);
  for (int times = 0; times < 2; ++times) {
    run.fill(plain);
    for (BufferId id : one.node().writes) {
      bool in_place = false;
      for (BufferId read : one.node().reads) in_place |= run.memory(read) == run.memory(id);
      if (in_place || one.buffer(id).role == BufferRole::Metric) continue;
      std::memset(run.memory(id), 0xFF, cpu.bytes(one.graph, one.program, id));
    }
    run.run(context);
  }
  expect_zero_padding(cpu, one, run);
  return run.results();
}

class CpuKernels : public testing::Test {
 protected:
  static std::unique_ptr<Backend> make_cpu(Convolution convolution = Convolution::Direct, std::string choices = {}) {
    return make_cpu_backend({.threads = 2, .convolution = convolution, .choices_file = std::move(choices)}, {});
  }

  void expect_agrees(const NodeSpec& spec, const StepContext& context, Reads reads = Reads::Value) {
    expect_agrees(*cpu_, spec, context, reads);
  }
  void expect_agrees(Backend& cpu, const NodeSpec& spec, const StepContext& context, Reads reads = Reads::Value) {
    const OneNode one = build_as_emitted(spec, reads);
    const Plain plain = random_plain(one, context, ++seed_);
    SCOPED_TRACE(testing::Message() << graph::name_of(spec.kind) << " " << graph::name_of(spec.pass) << " on x "
                                    << spec.x.str() << ", rows " << context.rows << ", " << spec.in_place.size()
                                    << " in place");
    const Plain expected = run_node(*reference_, one, context, plain);
    expect_close(one, context, expected, run_on_dirty_memory(cpu, one, context, plain), tolerance_);
  }
  // As above, also with each single place in `may` taken and with all of them together.
  void expect_agrees_in_place(NodeSpec spec, const StepContext& context, const std::vector<graph::InPlace>& may,
                              bool together = false) {
    expect_agrees(spec, context);
    for (const graph::InPlace& place : may) {
      spec.in_place = {place};
      expect_agrees(spec, context);
    }
    if (!together) return;
    spec.in_place = may;
    expect_agrees(spec, context);
  }

  double tolerance_ = 1e-5;  // of the largest magnitude
  std::unique_ptr<Backend> reference_ = make_reference_backend({});
  std::unique_ptr<Backend> cpu_ = make_cpu();
  uint64_t seed_ = 0;
};

}  // namespace millrace::backend::harness
