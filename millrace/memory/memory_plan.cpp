#include "millrace/memory/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace millrace::memory {
namespace {

using graph::BufferId;
using graph::Crossing;
using graph::InPlace;
using graph::Node;
using graph::Program;

constexpr size_t kNever = SIZE_MAX;

// A piece of the arena: one buffer, several that follow each other in place, or a node's scratch.
struct Storage {
  size_t bytes = 0;
  size_t first = kNever, last = 0;  // nodes
  size_t offset = 0;
  Home home = Home::Arena;
};

// No forward node, and before every backward node but the first.
size_t after_forward(const Program& program) { return program.first_backward; }

std::vector<size_t> last_uses(const Program& program) {
  std::vector<size_t> last(program.buffers.size(), 0);
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    for (BufferId id : program.nodes[i].reads) last[id] = i;
    for (BufferId id : program.nodes[i].writes) last[id] = i;
  }
  // What is sent is still read after the nodes of its pass.
  for (const Crossing& output : program.outputs)
    last[output.buffer] = std::max(last[output.buffer], after_forward(program));
  for (const Crossing& input : program.inputs) {
    if (input.gradient != graph::kNone) last[input.gradient] = kNever;
  }
  return last;
}

bool is_sent_gradient(const Program& program, BufferId id) {
  return std::any_of(program.inputs.begin(), program.inputs.end(), [&](const Crossing& c) { return c.gradient == id; });
}

bool is_received(const Program& program, BufferId id) {
  return std::any_of(program.inputs.begin(), program.inputs.end(), [&](const Crossing& c) { return c.buffer == id; });
}

// Which storage each buffer lives in; a write takes over the storage of a read that dies at the same node where
// the node allows it and the sizes agree.
std::vector<int> assign_storages(const Program& program, std::span<const size_t> bytes, std::vector<Storage>& storages,
                                 bool inputs_stay) {
  const std::vector<size_t> last = last_uses(program);
  std::vector<int> storage(program.buffers.size(), -1);
  auto arrives = [&](BufferId id, size_t before, Home home) {
    storage[id] = static_cast<int>(storages.size());
    storages.push_back({align_up(bytes[id]), before, before, 0, home});
  };
  for (const Crossing& input : program.inputs) arrives(input.buffer, 0, Home::Slot);
  for (const Crossing& output : program.outputs) {
    if (output.gradient != graph::kNone) arrives(output.gradient, program.first_backward, Home::GradientSlot);
  }
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    std::vector<bool> taken(node.reads.size(), false);
    for (const InPlace& pair : node.in_place) {
      const BufferId from = node.reads[pair.read], to = node.writes[pair.write];
      const bool once = std::count(node.reads.begin(), node.reads.end(), from) == 1;
      if (storage[to] != -1 || storage[from] == -1 || last[from] != i || taken[pair.read] || !once) continue;
      if (is_persistent(program.buffers[to].role) || bytes[from] != bytes[to]) continue;
      if (inputs_stay && is_received(program, from)) continue;
      if (is_sent_gradient(program, to)) continue;  // what arrived in its place may arrive again before it has left
      storage[to] = storage[from];
      taken[pair.read] = true;
    }
    for (BufferId id : node.writes) {
      if (storage[id] != -1 || is_persistent(program.buffers[id].role)) continue;
      storage[id] = static_cast<int>(storages.size());
      storages.push_back({align_up(bytes[id]), i, i, 0, Home::Arena});
    }
    for (const auto& ids : {node.reads, node.writes}) {
      for (BufferId id : ids) {
        if (storage[id] != -1) storages[storage[id]].last = i;
      }
    }
  }
  for (const Crossing& output : program.outputs) storages[storage[output.buffer]].home = Home::Slot;
  for (const Crossing& input : program.inputs) {
    if (input.gradient != graph::kNone) storages[storage[input.gradient]].home = Home::GradientSlot;
  }
  return storage;
}

// Places storages one by one, in the given order, each at the lowest offset free over its whole life.
size_t place(std::vector<Storage>& storages, const std::vector<int>& order) {
  std::vector<const Storage*> placed, overlapping;
  size_t top = 0;
  for (int index : order) {
    Storage& storage = storages[index];
    overlapping.clear();
    for (const Storage* other : placed) {
      if (other->first <= storage.last && storage.first <= other->last) overlapping.push_back(other);
    }
    std::sort(overlapping.begin(), overlapping.end(),
              [](const Storage* a, const Storage* b) { return a->offset < b->offset; });
    size_t offset = 0;
    for (const Storage* other : overlapping) {
      if (offset + storage.bytes <= other->offset) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    storage.offset = offset;
    top = std::max(top, offset + storage.bytes);
    placed.push_back(&storage);
  }
  return top;
}

// Two orders that pack differently well: by size, and by life span times size. The smaller result is kept.
size_t place_best(std::vector<Storage>& storages) {
  std::vector<int> by_size;
  for (int i = 0; i < static_cast<int>(storages.size()); ++i) {
    if (storages[i].home == Home::Arena) by_size.push_back(i);
  }
  std::vector<int> by_area = by_size;
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) { return storages[a].bytes > storages[b].bytes; });
  auto area = [&](int i) {
    return static_cast<double>(storages[i].bytes) * static_cast<double>(storages[i].last - storages[i].first + 1);
  };
  std::stable_sort(by_area.begin(), by_area.end(), [&](int a, int b) { return area(a) > area(b); });
  const size_t sized = place(storages, by_size);
  if (place(storages, by_area) <= sized) return place(storages, by_area);
  return place(storages, by_size);
}

// Everything in a slot may be alive at once: one after the other.
size_t place_in_turn(std::vector<Storage>& storages, Home home) {
  size_t top = 0;
  for (Storage& storage : storages) {
    if (storage.home != home) continue;
    storage.offset = top;
    top += storage.bytes;
  }
  return top;
}

}  // namespace

MemoryPlan plan_memory(const Program& program, std::span<const size_t> buffer_bytes,
                       std::span<const size_t> scratch_bytes, Between between) {
  std::vector<Storage> storages;
  const std::vector<int> storage_of = assign_storages(program, buffer_bytes, storages, between == Between::Again);
  for (Storage& storage : storages) {
    const bool waits = storage.first < program.first_backward && storage.last >= program.first_backward;
    if (between == Between::Others && waits) storage.home = Home::Slot;
  }
  const size_t first_scratch = storages.size();
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    storages.push_back({align_up(scratch_bytes[i]), i, i, 0, Home::Arena});
  }

  MemoryPlan plan;
  plan.arena_bytes = place_best(storages);
  plan.slot_bytes = place_in_turn(storages, Home::Slot);
  plan.gradient_slot_bytes = place_in_turn(storages, Home::GradientSlot);
  for (int index : storage_of) {
    plan.buffer_offset.push_back(index < 0 ? MemoryPlan::kNoOffset : storages[index].offset);
    plan.buffer_home.push_back(index < 0 ? Home::Arena : storages[index].home);
  }
  for (size_t i = 0; i < program.nodes.size(); ++i) plan.scratch_offset.push_back(storages[first_scratch + i].offset);

  std::vector<int64_t> change(program.nodes.size() + 1, 0);
  for (const Storage& storage : storages) {
    if (storage.home != Home::Arena) continue;
    change[storage.first] += static_cast<int64_t>(storage.bytes);
    change[storage.last + 1] -= static_cast<int64_t>(storage.bytes);
  }
  int64_t alive = 0;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    alive += change[i];
    if (static_cast<size_t>(alive) <= plan.floor_bytes) continue;
    plan.floor_bytes = static_cast<size_t>(alive);
    plan.peak_node = i;
  }
  std::vector<bool> counted(storages.size(), false);
  for (size_t id = 0; id < storage_of.size(); ++id) {
    const int index = storage_of[id];
    if (index < 0 || counted[index] || storages[index].home != Home::Arena) continue;
    if (storages[index].first > plan.peak_node || storages[index].last < plan.peak_node) continue;
    counted[index] = true;
    plan.alive_at_peak.push_back(static_cast<BufferId>(id));
  }
  if (!program.nodes.empty()) plan.scratch_at_peak = align_up(scratch_bytes[plan.peak_node]);
  return plan;
}

}  // namespace millrace::memory
