// Without static scheduling a worker need not wait for the next action of its list while another could run. The list
// falls into units: one forward or backward with the waits before it and what follows from it. Units of a stage and
// kind keep their order; a forward may go before a backward if a slot and its version of the weights are there, a
// backward before a forward whenever its gradient has come. So every unit reads and writes what it would in the list,
// and the numbers stay the same.
#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/runtime/worker.h"

namespace millrace::runtime {

using schedule::Direction;
using schedule::Kind;

std::vector<Worker::Unit> Worker::units_of(const std::vector<Bound>& list) {
  std::vector<Unit> units;
  size_t begin = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool computes = is_compute(list[i].kind);
    const bool first_part = list[i].part == schedule::kWhole || list[i].part == 0;
    if (!computes || !first_part) continue;
    // What must have arrived stands right before: receives, and steps of the stage.
    size_t start = i;
    while (start > begin && (list[start - 1].kind == Kind::Receive || list[start - 1].kind == Kind::Step)) --start;
    if (!units.empty()) units.back().end = start;
    units.push_back({list[i].stage, list[i].kind != Kind::Forward, start, list.size(), i, false});
    begin = i + 1;
  }
  return units;
}

bool Worker::can_run(const std::vector<Bound>& list, const Unit& unit) {
  const Stage& stage = stages_[unit.stage];
  if (list[unit.compute].needs >= limit_) return false;
  if (!unit.backward) {
    if (stage.forwards - stage.backwards >= stage.session->options().copies.slots) return false;
    if (std::max<int64_t>(stage.first_update + list[unit.compute].version, 0) > stage.session->updates()) return false;
  } else if (stage.backwards >= stage.forwards) {
    return false;
  }
  for (size_t i = unit.begin; i < unit.compute; ++i) {
    if (list[i].kind == Kind::Step) {
      if (list[i].part != schedule::kWhole) return true;  // a sum over replicas: all of them come to it in this order
      continue;
    }
    if (!has_arrived(list[i])) return false;
  }
  return true;
}

bool Worker::has_arrived(const Bound& action) {
  Stage& stage = stages_[action.stage];
  const bool activation = action.direction == Direction::Activation;
  const int slot = activation ? slot_of(stage, action.microbatch) : gradient_slot_of(stage, action.microbatch);
  bool arrived = true;
  for (Port::Piece& piece : stage.ports[action.port].pieces) {
    auto& tickets = activation ? piece.activation_ticket : piece.gradient_ticket;
    if (!tickets.empty()) arrived &= endpoint_.take(tickets[slot]);
  }
  return arrived;
}

void Worker::run_as_ready(List& bound) {
  const std::vector<Bound>& list = bound.actions;
  std::vector<Unit>& units = bound.units;
  for (Unit& unit : units) unit.done = false;
  for (size_t i = 0; i < (units.empty() ? list.size() : units[0].begin); ++i) {
    if (may_run(list[i])) run(list[i]);
  }
  for (Stage& stage : stages_) stage.forwards = stage.backwards = 0;
  auto do_unit = [&](Unit& unit) {
    for (size_t i = unit.begin; i < unit.end; ++i) {
      if (may_run(list[i])) run(list[i]);
    }
    ++(unit.backward ? stages_[unit.stage].backwards : stages_[unit.stage].forwards);
    unit.done = true;
  };
  size_t next = 0;
  while (next < units.size()) {
    if (units[next].done) {
      ++next;
      continue;
    }
    // Steps of a sum stand in front of a stage's next unit in the list: that one stays the next of its stage.
    size_t chosen = next;
    if (!can_run(list, units[next])) {
      passed_.assign(2 * stages_.size(), false);
      for (size_t i = next; i < units.size(); ++i) {
        if (units[i].done) continue;
        const size_t queue = static_cast<size_t>(2 * units[i].stage) + (units[i].backward ? 1 : 0);
        if (passed_[queue]) continue;
        passed_[queue] = true;
        const bool overtakes =
            std::any_of(units.begin() + static_cast<ptrdiff_t>(next), units.begin() + static_cast<ptrdiff_t>(i),
                        [&](const Unit& other) {
                          return !other.done && other.stage == units[i].stage && list[other.begin].kind == Kind::Step;
                        });
        if (i != next && (overtakes || list[units[i].begin].kind == Kind::Step)) continue;
        if (can_run(list, units[i])) {
          chosen = i;
          break;
        }
      }
    }
    // Nothing is ready: wait for what the list says comes next.
    do_unit(units[chosen]);
  }
}

}  // namespace millrace::runtime
