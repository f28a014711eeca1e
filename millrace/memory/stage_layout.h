// Where everything of a replica of a stage lies in its one block of memory: what lives as long as the stage, one copy
// of the weights per version, the inputs and slots of each micro-batch in flight, and the arena that passes share.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "millrace/graph/program.h"
#include "millrace/memory/memory_plan.h"

namespace millrace::memory {

// How many of what a stage keeps; see schedule/schedule.h.
struct Copies {
  int slots = 1;
  int gradient_slots = 1;
  int versions = 1;
};

constexpr Between between(const Copies& copies, bool recompute) {
  if (copies.slots <= 1) return Between::Nothing;
  return recompute ? Between::Again : Between::Others;
}

// Which copy of each kind is meant.
struct Copy {
  int slot = 0;
  int gradient_slot = 0;
  int version = 0;
};

// What memory is for, as plans and tables sum it up.
enum class MemoryKind { Weights, Gradients, Optimizer, Activations, Buffers, Workspace };

struct MemoryItem {
  std::string what;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::Workspace;
};

// A program with the memory of its own buffers.
struct LaidOutProgram {
  const graph::Program& program;
  const std::vector<size_t>& buffer_bytes;
  const MemoryPlan& plan;
};

class StageLayout {
 public:
  // Programs of one stage: their persistent buffers are the same memory, their slots and arenas overlap.
  StageLayout(const Copies& copies, const std::vector<LaidOutProgram>& programs);

  size_t bytes() const { return bytes_; }
  size_t arena_bytes() const { return arena_bytes_; }

  // Offset of a buffer of programs[program]; MemoryPlan::kNoOffset where it has none.
  size_t offset(size_t program, graph::BufferId id, const Copy& copy) const;
  size_t arena_offset() const { return arena_; }

  // Kept gradients follow each other in the order of the program's buffers, the running statistics after them.
  size_t statistics_offset() const { return statistics_; }
  size_t statistics_bytes() const { return statistics_bytes_; }

  // What a checkpoint is made of lies in one piece: statistics, agreement, what the optimizer keeps, what
  // stands still, and all versions of the weights where there is more to know of them than their masters.
  size_t state_offset() const { return statistics_; }
  size_t state_bytes() const { return state_bytes_; }

  // By kind, at the peak of programs[0].
  std::vector<MemoryItem> items() const;

 private:
  struct Key {
    graph::BufferRole role;
    int which;  // the parameter, or features and labels apart
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(const graph::Program& program, graph::BufferId id);
  int copies_of(graph::BufferRole role) const;
  size_t region(graph::BufferRole role, size_t start);

  Copies copies_;
  std::vector<LaidOutProgram> programs_;
  std::map<Key, size_t> offset_;                     // in the first copy of its role's region
  std::map<graph::BufferRole, size_t> copy_stride_;  // from one copy of a role's region to the next
  size_t statistics_ = 0, statistics_bytes_ = 0, state_bytes_ = 0;
  size_t slots_ = 0, slot_bytes_ = 0;
  size_t gradient_slots_ = 0, gradient_slot_bytes_ = 0;
  size_t arena_ = 0, arena_bytes_ = 0;
  size_t bytes_ = 0;
};

}  // namespace millrace::memory
