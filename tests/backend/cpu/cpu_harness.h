// CPU kernels against the reference backend: the same node, the same random numbers, over many shapes drawn from a
// fixed stream. Beyond what node_harness.h compares, whatever a kernel writes starts as NaN with its padding, as
// memory of an arena would, and the padding channels must come out as zero: every kernel relies on the one before.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "backend/node_harness.h"
#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/reference/reference_backend.h"

namespace millrace::backend::harness {

// Draws the same shapes in every run.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed, 0, 0) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.at(next_++)[0] % static_cast<uint64_t>(high - low + 1));
  }
  int small(int low, int high) { return static_cast<int>(between(low, high)); }
  bool coin() { return between(0, 1) == 1; }
  int64_t pick(std::initializer_list<int64_t> from) {
    return from.begin()[between(0, static_cast<int64_t>(from.size()) - 1)];
  }
  int64_t channels() { return pick({1, 3, 5, 16, 17, 32, 48}); }

  // Batch 1 to 5; the rows that are samples may be fewer.
  Shape images(int64_t channels, int64_t smallest, int64_t largest) {
    return {between(1, 5), channels, between(smallest, largest), between(smallest, largest)};
  }
  StepContext context(int64_t batch) {
    const int64_t rows = coin() ? batch : between(1, batch);
    return {.seed = 3,
            .step = between(0, 100),
            .first_row = 4,
            .rows = rows,
            .inverse_samples = 1.0 / static_cast<double>(rows + 1),
            .learning_rate = 0.05f};
  }

 private:
  RandomStream random_;
  uint64_t next_ = 0;
};

// Whether a convolution reads the network's input, which is plain, or a value of the network, which is blocked.
enum class Reads { Value, Images };

inline OneNode build_for_cpu(const NodeSpec& spec, Reads reads = Reads::Value) {
  OneNode one = build(spec);
  one.graph.images = reads == Reads::Images ? 0 : graph::kNone;
  if (reads == Reads::Images) {
    for (graph::Buffer& buffer : one.program.buffers) {
      if (buffer.name == "x") buffer.role = BufferRole::Input;
    }
  }
  // Without a ReLU the gradient of the residual is dy itself: autodiff shares the buffer and no node writes it.
  if (const auto* norm = std::get_if<graph::BatchNormAttrs>(&spec.attrs);
      norm && spec.pass == Pass::InputGrad && norm->residual && !norm->relu) {
    one.program.nodes[0].writes.pop_back();
  }
  return one;
}

// Channels per block of the blocked layout.
inline int64_t block_of(Backend& cpu) {
  const OneNode one = build_for_cpu({.kind = OpKind::Relu, .x = {1, 1, 1, 1}});
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
    const OneNode one = build_for_cpu(spec, reads);
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
