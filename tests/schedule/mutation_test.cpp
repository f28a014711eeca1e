// The prover and an independent machine must agree about schedules that were damaged at random: what the prover
// refuses goes wrong in some run, what it accepts goes right in all that are tried.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "millrace/schedule/generators.h"
#include "millrace/schedule/prover.h"
#include "schedule/emulator.h"
#include "schedule/pipelines.h"

namespace millrace::schedule {
namespace {

size_t num_actions(const Schedule& schedule) {
  size_t count = 0;
  for (const std::vector<Action>& list : schedule.workers) count += list.size();
  return count;
}

std::vector<Schedule> originals() {
  std::vector<Schedule> all;
  for (const auto& [name, pipeline] : many_pipelines()) {
    for (const int updates : {1, 2, 5}) all.push_back(lower(compute_schedule(pipeline, updates)));
    all.push_back(lower(evaluation_schedule(pipeline, 4)));
  }
  for (int p = 1; p <= 3; ++p) {
    all.push_back(lower(interleaved_schedule(p, 2, 2 * p)));
    all.push_back(lower(zb_h1_schedule(p, 4)));
    all.push_back(lower(zb_v_schedule(p, 4)));
  }
  std::erase_if(all, [](const Schedule& schedule) { return num_actions(schedule) > 300; });
  return all;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // Damages the schedule in one place and says how.
  std::string mutate(Schedule& schedule) {
    std::vector<Action>* list = nullptr;
    while (list == nullptr || list->empty()) list = &schedule.workers[below(schedule.workers.size())];
    const size_t at = below(list->size());
    Action& action = (*list)[at];
    const std::string what =
        fmt::format("worker {}, action {} ({})", list - schedule.workers.data(), at, to_text(schedule, action));
    switch (below(12)) {
      case 0: return swap(*list, at, below(list->size()), what);
      case 1:
      case 2: return swap(*list, at, std::min(at + 1 + below(3), list->size() - 1), what);
      case 3: list->erase(list->begin() + at); return "drop " + what;
      case 4: return insert(*list, Action(action), what);
      case 5: return move(*list, at, what);
      case 6: return retarget(schedule, *list, at, what);
      case 7: action.microbatch = near(action.microbatch); return "micro-batch of " + what;
      case 8: action.version = near(action.version); return "version of " + what;
      case 9: action.part = near(action.part); return "part of " + what;
      case 10: return resize(schedule.slots[below(schedule.slots.size())], "slots");
      default: return resize(schedule.gradient_slots, "gradient slots");
    }
  }

  size_t below(size_t end) { return random_() % end; }

 private:
  int near(int value) { return value + static_cast<int>(below(2) == 0 ? 1 + below(3) : -1 - below(2)); }

  std::string resize(int& slots, const char* what) {
    slots = std::max(near(slots), 0);
    return fmt::format("{} become {}", what, slots);
  }
  static std::string swap(std::vector<Action>& list, size_t a, size_t b, const std::string& what) {
    std::swap(list[a], list[b]);
    return fmt::format("swap {} with {}", what, b);
  }
  std::string insert(std::vector<Action>& list, const Action& action, const std::string& what) {
    const size_t at = below(list.size() + 1);
    list.insert(list.begin() + at, action);
    return fmt::format("again at {}: {}", at, what);
  }
  std::string move(std::vector<Action>& list, size_t from, const std::string& what) {
    const Action action = list[from];
    list.erase(list.begin() + from);
    return "moved, " + insert(list, action, what);
  }
  std::string retarget(Schedule& schedule, std::vector<Action>& list, size_t at, const std::string& what) {
    Action& action = list[at];
    switch (below(5)) {
      case 0: action.peer = static_cast<int>(below(schedule.workers.size() + 1)); return "peer of " + what;
      case 1: action.edge = static_cast<int>(below(schedule.pipeline.edges.size() + 1)); return "edge of " + what;
      case 2: action.stage = static_cast<int>(below(schedule.pipeline.stages.size() + 1)); return "stage of " + what;
      case 3:
        action.direction = action.direction == Direction::Gradient ? Direction::Activation : Direction::Gradient;
        return "direction of " + what;
      default: break;
    }
    const Action moved = action;
    list.erase(list.begin() + at);
    std::vector<Action>& other = schedule.workers[below(schedule.workers.size())];
    other.insert(other.begin() + below(other.size() + 1), moved);
    return "to another worker: " + what;
  }

  std::mt19937_64 random_;
};

std::optional<std::string> first_failure(const Schedule& schedule, uint64_t seed) {
  for (const Policy policy : {Policy::FirstWorker, Policy::LastWorker, Policy::LateMessages, Policy::LatestMessages}) {
    if (auto wrong = emulate(schedule, policy, seed)) return wrong;
  }
  for (int run = 0; run < 3; ++run) {
    if (auto wrong = emulate(schedule, Policy::Random, seed + run)) return wrong;
  }
  return {};
}

TEST(Prover, AgreesWithAnEmulatorAboutDamagedSchedules) {
  const std::vector<Schedule> all = originals();
  Mutator mutator(20240611);
  int accepted = 0, rejected = 0;
  for (int i = 0; i < 10'000; ++i) {
    Schedule schedule = all[mutator.below(all.size())];
    const std::string mutation = mutator.mutate(schedule);
    const std::optional<Fault> fault = find_fault(schedule);
    const std::optional<std::string> wrong = first_failure(schedule, i);
    ++(fault ? rejected : accepted);
    EXPECT_EQ(fault.has_value(), wrong.has_value())
        << "mutation " << i << ": " << mutation << "\nprover: " << (fault ? to_text(schedule, *fault) : "accepts")
        << "\nemulator: " << wrong.value_or("runs");
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(rejected, 5000);
}

}  // namespace
}  // namespace millrace::schedule
