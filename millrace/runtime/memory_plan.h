// Lays out a program's memory before anything is allocated: each buffer that is not persistent gets an offset
// in one arena, chosen from the span of nodes in which it is alive.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/graph/program.h"

namespace millrace::runtime {

struct MemoryPlan {
  static constexpr size_t kNoOffset = SIZE_MAX;

  std::vector<size_t> buffer_offset;   // in the arena; kNoOffset for persistent and unused buffers
  std::vector<size_t> scratch_offset;  // per node
  size_t arena_bytes = 0;
  size_t floor_bytes = 0;  // most bytes alive at one node: no layout is smaller
  size_t peak_node = 0;    // where that is
  std::vector<graph::BufferId> alive_at_peak;
  size_t scratch_at_peak = 0;
};

constexpr size_t kBufferAlignment = 64;
constexpr size_t align_up(size_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }

// `buffer_bytes` per buffer, `scratch_bytes` per node.
MemoryPlan plan_memory(const graph::Program& program, std::span<const size_t> buffer_bytes,
                       std::span<const size_t> scratch_bytes);

}  // namespace millrace::runtime
