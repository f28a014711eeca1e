// Runs one node alone, on any backend: fills what it reads with random numbers that make sense, poisons what it writes,
// runs it, and hands the results back plain. The same node on two backends:
//
//   expect_same_results(*reference, *cpu, {.kind = OpKind::Relu, .x = {3, 5, 7, 7}}, {.rows = 2}, /*seed=*/1, 1e-5);
//
// Header only, as the test binaries are built from *_test.cpp alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backend/node_numbers.h"
#include "backend/shape_dice.h"

namespace millrace::backend::harness {

// One node bound to memory of a backend.
class NodeRun {
 public:
  NodeRun(Backend& backend, const OneNode& one) : backend_(backend), one_(one) {
    const graph::Node& node = one.node();
    const auto num_buffers = static_cast<BufferId>(one.program.buffers.size());
    for (BufferId id = 0; id < num_buffers; ++id) {
      home_.push_back(id);
      bytes_.push_back(std::max<size_t>(backend.bytes(one.graph, one.program, id), 1));
    }
    for (const graph::InPlace& place : node.in_place) {
      const BufferId write = node.writes[place.write], read = node.reads[place.read];
      home_[write] = read;
      bytes_[read] = std::max(bytes_[read], bytes_[write]);
    }
    for (BufferId id = 0; id < num_buffers; ++id) {
      memory_.push_back(home_[id] == id ? backend.allocate(bytes_[id]) : nullptr);
    }

    const Kernel kernel = backend.prepare(one.view());
    scratch_bytes_ = kernel.scratch_bytes;
    if (scratch_bytes_ > 0) scratch_ = backend.allocate(scratch_bytes_);
    Bindings bindings;
    for (BufferId id : node.reads) bindings.reads.push_back(memory(id));
    for (BufferId id : node.writes) bindings.writes.push_back(memory(id));
    bindings.scratch = scratch_;
    task_ = kernel.bind(bindings);
  }
  NodeRun(const NodeRun&) = delete;
  NodeRun& operator=(const NodeRun&) = delete;
  ~NodeRun() {
    for (size_t id = 0; id < memory_.size(); ++id) {
      if (memory_[id]) backend_.release(memory_[id], bytes_[id]);
    }
    if (scratch_) backend_.release(scratch_, scratch_bytes_);
  }

  // Fills what the node reads from `plain`, and poisons what it only writes: with NaN, with 255 where the type has
  // no NaN. Metrics are added to, so they start from 0.
  void fill(const Plain& plain) {
    for (BufferId id : one_.node().writes) {
      if (one_.reads(id) || home_[id] != id) continue;
      const graph::Buffer& buffer = one_.buffer(id);
      const bool has_nan = buffer.dtype != DType::I32 && buffer.dtype != DType::U8;
      const float poison = has_nan ? std::numeric_limits<float>::quiet_NaN() : 255;
      upload(id, std::vector<float>(buffer.shape.elements(), buffer.role == BufferRole::Metric ? 0 : poison));
    }
    for (BufferId id : one_.node().reads) upload(id, plain.at(one_.buffer(id).name));
  }

  void run(const StepContext& context) {
    backend_.begin(context);
    task_(context);
    backend_.wait();
  }

  Plain results() const {
    Plain plain;
    for (BufferId id : one_.results()) {
      std::vector<float>& values = plain[one_.buffer(id).name];
      values.resize(one_.buffer(id).shape.elements());
      backend_.download(one_.graph, one_.program, id, memory(id), values);
    }
    return plain;
  }

  // Where a buffer lies, in the memory and the layout of the backend.
  void* memory(BufferId id) const { return memory_[home_[id]]; }

 private:
  void upload(BufferId id, const std::vector<float>& plain) {
    backend_.upload(one_.graph, one_.program, id, plain, memory(id));
  }

  Backend& backend_;
  const OneNode& one_;
  std::vector<BufferId> home_;  // whose memory a buffer lies in: its own, or that of the read it takes the place of
  std::vector<size_t> bytes_;
  std::vector<void*> memory_;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  Task task_;
};

// Runs the node twice, so that what the first run left in scratch or in the kernel would show.
inline Plain run_node(Backend& backend, const OneNode& one, const StepContext& context, const Plain& plain) {
  NodeRun run(backend, one);
  for (int times = 0; times < 2; ++times) {
    run.fill(plain);
    run.run(context);
  }
  return run.results();
}

// Every result within `tolerance` of the buffer's largest magnitude. In forward passes the rows that are not samples
// only have to be finite; an argmax there may be anything.
inline void expect_close(const OneNode& one, const StepContext& context, const Plain& expected, const Plain& actual,
                         double tolerance) {
  const bool forward = one.node().pass == Pass::Forward || one.node().pass == Pass::Evaluate;
  for (BufferId id : one.results()) {
    const graph::Buffer& buffer = one.buffer(id);
    const std::vector<float>&want = expected.at(buffer.name), &got = actual.at(buffer.name);
    ASSERT_EQ(want.size(), got.size()) << buffer.name;
    const bool has_rows = buffer.name == "y" || buffer.name == "argmax";
    if (forward && has_rows) {
      ASSERT_GT(context.rows, 0) << "without rows nothing is compared: set StepContext::rows";
    }
    const size_t compared = forward && has_rows ? want.size() / buffer.shape[0] * context.rows : want.size();
    float largest = 0;
    for (size_t i = 0; i < compared; ++i) largest = std::max(largest, std::abs(want[i]));
    for (size_t i = 0; i < want.size(); ++i) {
      if (i < compared) {
        ASSERT_LE(std::abs(want[i] - got[i]), tolerance * largest)
            << buffer.name << " " << buffer.shape.str() << ", element " << i << ": expected " << want[i] << ", got "
            << got[i];
      } else {
        ASSERT_TRUE(std::isfinite(got[i])) << buffer.name << ", padding element " << i << ": " << got[i];
      }
    }
  }
}

// The same node and the same random numbers on two backends.
inline void expect_same_results(Backend& expected, Backend& actual, const NodeSpec& spec, const StepContext& context,
                                uint64_t seed, double tolerance) {
  const OneNode one = build(spec);
  const Plain plain = random_plain(one, context, seed);
  SCOPED_TRACE(std::string(graph::name_of(spec.kind)) + " " + graph::name_of(spec.pass) + " on x " + spec.x.str());
  expect_close(one, context, run_node(expected, one, context, plain), run_node(actual, one, context, plain), tolerance);
}

}  // namespace millrace::backend::harness
