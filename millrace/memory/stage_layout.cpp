#include "millrace/memory/stage_layout.h"

#include <algorithm>

namespace millrace::memory {

using graph::BufferId;
using graph::BufferRole;
using graph::Program;

namespace {

MemoryKind kind_of(BufferRole role) {
  switch (role) {
    case BufferRole::Weight:
    case BufferRole::Constant:
    case BufferRole::Statistic:
    case BufferRole::Metric: return MemoryKind::Weights;
    case BufferRole::WeightGradient:
    case BufferRole::GradientSum:
    case BufferRole::SharedGradient: return MemoryKind::Gradients;
    case BufferRole::Velocity:
    case BufferRole::SecondMoment:
    case BufferRole::Master:
    case BufferRole::Watch:
    case BufferRole::Agreement: return MemoryKind::Optimizer;
    case BufferRole::Input:
    case BufferRole::Activation: return MemoryKind::Activations;
    case BufferRole::Gradient: return MemoryKind::Buffers;
  }
  return MemoryKind::Workspace;
}

}  // namespace

StageLayout::Key StageLayout::key_of(const Program& program, BufferId id) {
  const graph::Buffer& buffer = program.buffers[id];
  if (is_kept_gradient(buffer.role)) return {buffer.role, id};  // a parameter may have one for each of its readers
  if (buffer.param != graph::kNone) return {buffer.role, buffer.param};
  return {buffer.role, id == program.labels ? 1 : 0};
}

int StageLayout::copies_of(BufferRole role) const {
  if (role == BufferRole::Weight) return copies_.versions;
  return role == BufferRole::Input ? copies_.slots : 1;
}

// Lays the buffers of a role one after another; returns where the next region starts.
size_t StageLayout::region(BufferRole role, size_t start) {
  size_t bytes = 0;
  for (const LaidOutProgram& laid_out : programs_) {
    for (BufferId id = 0; id < static_cast<BufferId>(laid_out.program.buffers.size()); ++id) {
      if (laid_out.program.buffers[id].role != role) continue;
      if (!offset_.emplace(key_of(laid_out.program, id), start + bytes).second) continue;
      bytes += align_up(laid_out.buffer_bytes[id]);
    }
  }
  copy_stride_[role] = bytes;
  return start + bytes * static_cast<size_t>(copies_of(role));
}

StageLayout::StageLayout(const Copies& copies, const std::vector<LaidOutProgram>& programs)
    : copies_(copies), programs_(programs) {
  for (const LaidOutProgram& laid_out : programs) {
    slot_bytes_ = std::max(slot_bytes_, laid_out.plan.slot_bytes);
    gradient_slot_bytes_ = std::max(gradient_slot_bytes_, laid_out.plan.gradient_slot_bytes);
    arena_bytes_ = std::max(arena_bytes_, laid_out.plan.arena_bytes);
  }
  size_t top = 0;
  for (BufferRole role : {BufferRole::Metric, BufferRole::GradientSum, BufferRole::SharedGradient}) {
    top = region(role, top);
  }
  statistics_ = top;
  top = region(BufferRole::Statistic, top);
  statistics_bytes_ = top - statistics_;
  for (BufferRole role : {BufferRole::Agreement, BufferRole::Watch, BufferRole::Master, BufferRole::Velocity,
                          BufferRole::SecondMoment, BufferRole::Constant}) {
    top = region(role, top);
  }
  const size_t weights = top;
  top = region(BufferRole::Weight, top);
  const bool has_masters = copy_stride_.at(BufferRole::Master) > 0;
  state_bytes_ = (has_masters && copies.versions == 1 ? weights : top) - statistics_;
  slots_ = region(BufferRole::Input, top);
  gradient_slots_ = slots_ + slot_bytes_ * static_cast<size_t>(copies.slots);
  arena_ = gradient_slots_ + gradient_slot_bytes_ * static_cast<size_t>(copies.gradient_slots);
  bytes_ = arena_ + arena_bytes_;
}

size_t StageLayout::offset(size_t program, BufferId id, const Copy& copy) const {
  const LaidOutProgram& laid_out = programs_[program];
  const BufferRole role = laid_out.program.buffers[id].role;
  if (is_persistent(role)) {
    const int which = role == BufferRole::Weight ? copy.version : role == BufferRole::Input ? copy.slot : 0;
    return offset_.at(key_of(laid_out.program, id)) + copy_stride_.at(role) * static_cast<size_t>(which);
  }
  const size_t own = laid_out.plan.buffer_offset[id];
  if (own == MemoryPlan::kNoOffset) return own;
  switch (laid_out.plan.buffer_home[id]) {
    case Home::Slot: return slots_ + slot_bytes_ * static_cast<size_t>(copy.slot) + own;
    case Home::GradientSlot:
      return gradient_slots_ + gradient_slot_bytes_ * static_cast<size_t>(copy.gradient_slot) + own;
    case Home::Arena: break;
  }
  return arena_ + own;
}

std::vector<MemoryItem> StageLayout::items() const {
  const LaidOutProgram& first = programs_[0];
  std::map<BufferRole, size_t> by_role;
  for (const auto& [role, bytes] : copy_stride_) {
    if (bytes > 0) by_role[role] += bytes * static_cast<size_t>(copies_of(role));
  }
  for (BufferId id : first.plan.alive_at_peak) {
    by_role[first.program.buffers[id].role] += align_up(first.buffer_bytes[id]);
  }
  if (slot_bytes_ > 0) by_role[BufferRole::Activation] += slot_bytes_ * static_cast<size_t>(copies_.slots);
  if (gradient_slot_bytes_ > 0) {
    by_role[BufferRole::Gradient] += gradient_slot_bytes_ * static_cast<size_t>(copies_.gradient_slots);
  }
  std::vector<MemoryItem> items;
  for (const auto& [role, bytes] : by_role) items.push_back({name_of(role), bytes, kind_of(role)});
  items.push_back({"workspace", first.plan.scratch_at_peak});
  items.push_back({"gaps between buffers", first.plan.arena_bytes - first.plan.floor_bytes});
  return items;
}

}  // namespace millrace::memory
