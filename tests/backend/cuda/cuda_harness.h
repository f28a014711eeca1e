// CUDA kernels against the reference backend, in every type the GPU computes in: the reference runs the same node in
// f32 on the same numbers, rounded first to the type of the buffer they go into. Whatever a kernel writes starts as NaN
// with its padding, as memory of an arena would, and the padding must come out as zero.
//
// A namespace of its own: the harness of the CPU has names like these, and both go into one test binary.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "backend/node_harness.h"
#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/backend/reference/reference_backend.h"

namespace millrace::backend::harness::cuda {

class Dice : public ShapeDice {
 public:
  using ShapeDice::ShapeDice;
  int64_t channels() { return pick({1, 3, 5, 8, 13, 64}); }
};

// To the nearest number of the type, to the even one of two.
inline float rounded(float value, DType dtype) {
  if (!is_half(dtype) || !std::isfinite(value) || value == 0) return value;
  const int digits = dtype == DType::F16 ? 11 : 8, smallest = dtype == DType::F16 ? -24 : -133;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - digits, smallest);
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

// Of the norm of a result.
inline double tolerance_of(DType dtype) { return is_half(dtype) ? 1e-2 : 1e-5; }

// The node that the reference runs instead.
inline OneNode build_for_reference(NodeSpec spec, Reads reads = Reads::Value) {
  spec.dtype = DType::F32;
  spec.in_place.clear();
  return build_as_emitted(spec, reads);
}

inline Plain random_rounded(const OneNode& one, const StepContext& context, uint64_t seed) {
  Plain plain = random_plain(one, context, seed);
  for (BufferId id : one.node().reads) {
    for (float& value : plain.at(one.buffer(id).name)) value = rounded(value, one.buffer(id).dtype);
  }
  if (plain.count("master")) plain.at("master") = plain.at("w");
  return plain;
}

// Whether an element of a buffer as it is stored is padding. Of four axes the channels come last, a multiple of eight,
// and a parameter has both kinds of channels padded; everything else is plain with its end padded.
inline bool is_padding(const graph::Buffer& buffer, int64_t element) {
  const Shape& s = buffer.shape;
  if (s.rank() != 4) return element >= s.elements();
  const int64_t channels = (s[1] + 7) / 8 * 8;
  return element % channels >= s[1] || element / (channels * s[2] * s[3]) >= s[0];
}
inline int64_t stored_elements(const graph::Buffer& buffer) {
  auto padded = [](int64_t count) { return (count + 7) / 8 * 8; };
  const Shape& s = buffer.shape;
  if (s.rank() != 4) return padded(s.elements());
  return (buffer.param == graph::kNone ? s[0] : padded(s[0])) * padded(s[1]) * s[2] * s[3];
}

// Between the channels of images and convolution weights: kernels go over it.
inline void expect_zero_padding(Backend& cuda, const OneNode& one, const NodeRun& run) {
  for (BufferId id : one.node().writes) {
    const graph::Buffer& buffer = one.buffer(id);
    const bool is_float = buffer.dtype == DType::F32 || is_half(buffer.dtype);
    if (!is_float || buffer.shape.rank() != 4) continue;
    const auto width = static_cast<int64_t>(bytes_of(buffer.dtype)), stored = stored_elements(buffer);
    std::vector<uint8_t> bytes(cuda.bytes(one.graph, one.program, id));
    ASSERT_GE(static_cast<int64_t>(bytes.size()), stored * width) << buffer.name << " " << buffer.shape.str();
    cuda.copy(bytes.data(), run.memory(id), bytes.size());
    for (int64_t i = 0; i < stored * width; ++i) {
      // The highest byte may hold the sign of a zero.
      const int bits = i % width == width - 1 ? bytes[i] & 0x7F : bytes[i];
      if (is_padding(buffer, i / width)) {
        ASSERT_EQ(bits, 0) << buffer.name << " " << buffer.shape.str() << ": padding, stored element " << i / width;
      }
    }
  }
}

inline Plain run_on_dirty_memory(Backend& cuda, const OneNode& one, const StepContext& context, const Plain& plain) {
  NodeRun run(cuda, one);
  for (int times = 0; times < 2; ++times) {
    run.fill(plain);
    for (BufferId id : one.node().writes) {
      bool in_place = false;
      for (BufferId read : one.node().reads) in_place |= run.memory(read) == run.memory(id);
      if (in_place || one.buffer(id).role == BufferRole::Metric) continue;
      const std::vector<uint8_t> dirt(cuda.bytes(one.graph, one.program, id), 0xFF);
      cuda.copy(run.memory(id), dirt.data(), dirt.size());
    }
    run.run(context);
  }
  expect_zero_padding(cuda, one, run);
  return run.results();
}

// ||got - want|| against ||want||, over the first `compared` numbers; the others only have to be finite.
inline void expect_near(const std::string& name, const std::vector<float>& want, const std::vector<float>& got,
                        size_t compared, double tolerance) {
  ASSERT_EQ(want.size(), got.size()) << name;
  double difference = 0, size = 0, worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << name << ", element " << i << " of " << want.size() << ": " << got[i];
    if (i >= compared) continue;
    const double off = static_cast<double>(got[i]) - want[i];
    difference += off * off;
    size += static_cast<double>(want[i]) * want[i];
    if (std::abs(off) > worst) worst = std::abs(off), at = i;
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size))
      << name << ": norm of what was expected " << std::sqrt(size) << ", worst element " << at << " of " << compared
      << ": expected " << want[at] << ", got " << got[at];
}

// In forward passes the rows that are not samples only have to be finite. What is chosen or counted is exact.
inline void expect_close_in_norm(const OneNode& one, const StepContext& context, const Plain& expected,
                                 const Plain& actual, double tolerance) {
  const bool forward = one.node().pass == Pass::Forward || one.node().pass == Pass::Evaluate;
  for (BufferId id : one.results()) {
    const graph::Buffer& buffer = one.buffer(id);
    const std::vector<float>&want = expected.at(buffer.name), &got = actual.at(buffer.name);
    const bool has_rows = buffer.name == "y" || buffer.name == "argmax";
    if (forward && has_rows) {
      ASSERT_GT(context.rows, 0) << "without rows nothing is compared: set StepContext::rows";
    }
    const size_t compared = forward && has_rows ? want.size() / buffer.shape[0] * context.rows : want.size();
    const double allowed = buffer.dtype == DType::U8 ? 0 : tolerance;
    ASSERT_NO_FATAL_FAILURE(expect_near(buffer.name + " " + buffer.shape.str(), want, got, compared, allowed));
    if (buffer.role == BufferRole::Metric) {
      for (int i : {graph::kTop1, graph::kTop5, graph::kRows}) EXPECT_EQ(got[i], want[i]) << "metric " << i;
    }
  }
}

inline void expect_same_results_in(Backend& reference, Backend& cuda, const NodeSpec& spec, const StepContext& context,
                                   uint64_t seed, Reads reads = Reads::Value) {
  SCOPED_TRACE(testing::Message() << graph::name_of(spec.kind) << " " << graph::name_of(spec.pass) << " in "
                                  << name_of(spec.dtype) << " on x " << spec.x.str() << ", rows " << context.rows
                                  << ", " << spec.in_place.size() << " in place");
  const OneNode one = build_as_emitted(spec, reads), plain_one = build_for_reference(spec, reads);
  const Plain plain = random_rounded(one, context, seed);
  expect_close_in_norm(one, context, run_node(reference, plain_one, context, plain),
                       run_on_dirty_memory(cuda, one, context, plain), tolerance_of(spec.dtype));
}

constexpr DType kTypes[] = {DType::F32, DType::F16, DType::BF16};

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    use({});
  }
  void use(const OptimizerOptions& sgd) {
    reference_ = make_reference_backend(sgd);
    cuda_ = make_cuda_backend({}, sgd);
  }

  void expect_agrees(NodeSpec spec, const StepContext& context, Reads reads = Reads::Value) {
    ++seed_;
    for (DType dtype : kTypes) {
      spec.dtype = dtype;
      expect_same_results_in(*reference_, *cuda_, spec, context, seed_, reads);
    }
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

  std::unique_ptr<Backend> reference_, cuda_;
  uint64_t seed_ = 0;
};

}  // namespace millrace::backend::harness::cuda
