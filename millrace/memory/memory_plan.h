// Lays out a program's memory before anything is allocated. A buffer that is not persistent lies in the arena, at an
// offset chosen from the span of nodes in which it is alive; or, if it must outlive the nodes around it, in a slot:
// what a stage receives or sends, and - where several micro-batches are in flight - what forward leaves for backward.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/graph/program.h"

namespace millrace::memory {

enum class Home { Arena, Slot, GradientSlot };

struct MemoryPlan {
  static constexpr size_t kNoOffset = SIZE_MAX;

  std::vector<size_t> buffer_offset;  // from the start of its home; kNoOffset for persistent and unused buffers
  std::vector<Home> buffer_home;
  size_t slot_bytes = 0;               // of one slot
  size_t gradient_slot_bytes = 0;      // of one gradient slot
  std::vector<size_t> scratch_offset;  // per node
  size_t arena_bytes = 0;
  size_t floor_bytes = 0;  // most bytes alive at one node: no layout is smaller
  size_t peak_node = 0;    // where that is
  std::vector<graph::BufferId> alive_at_peak;
  size_t scratch_at_peak = 0;
};

constexpr size_t kBufferAlignment = 256;  // what the libraries of GPUs expect of every operand
constexpr size_t align_up(size_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }

// What becomes of what forward leaves for backward.
enum class Between {
  Nothing,  // backward follows its forward
  Others,   // other micro-batches run between the two: it waits in slots
  Again,    // they do, and forward is run again before backward: only what was received waits
};

// `buffer_bytes` per buffer, `scratch_bytes` per node.
MemoryPlan plan_memory(const graph::Program& program, std::span<const size_t> buffer_bytes,
                       std::span<const size_t> scratch_bytes, Between between = Between::Nothing);

}  // namespace millrace::memory
