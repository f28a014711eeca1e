#include "millrace/schedule/slots.h"

#include <algorithm>
#include <map>

namespace millrace::schedule {
namespace {

struct Use {
  int local = 0;           // place of the micro-batch among those of its replica
  int begin = 0, end = 0;  // places in the worker's list
};

// What one replica keeps in buffers of one kind, in the order of its beginning.
class Uses {
 public:
  void begin(int local, int place) {
    open_[local] = uses_.size();
    uses_.push_back({local, place, place});
    most_ = std::max(most_, static_cast<int>(open_.size()));
  }
  void end(int local, int place) {
    const auto found = open_.find(local);
    if (found == open_.end()) return;
    uses_[found->second].end = place;
    open_.erase(found);
  }
  int most() const { return most_; }
  bool fit(int slots) const {
    std::vector<int> taken_until(slots, -1);
    for (const Use& use : uses_) {
      int& until = taken_until[use.local % slots];
      if (use.begin <= until) return false;
      until = use.end;
    }
    return true;
  }

 private:
  std::vector<Use> uses_;
  std::map<int, size_t> open_;
  int most_ = 0;
};

int enough_slots(const std::vector<const Uses*>& replicas, int spare) {
  int slots = 1;
  for (const Uses* uses : replicas) slots = std::max(slots, uses->most());
  slots += spare;
  const auto all_fit = [&] {
    return std::all_of(replicas.begin(), replicas.end(), [&](const Uses* uses) { return uses->fit(slots); });
  };
  while (!all_fit()) ++slots;  // ends: no two micro-batches meet in as many slots as there are micro-batches
  return slots;
}

}  // namespace

SlotCounts count_slots(const Schedule& compute, int spare) {
  std::map<std::pair<int, size_t>, Uses> activations, gradients;  // by stage and worker
  for (size_t w = 0; w < compute.workers.size(); ++w) {
    for (int i = 0; i < static_cast<int>(compute.workers[w].size()); ++i) {
      const Action& action = compute.workers[w][i];
      const int local = local_index(compute.pipeline, action.stage, action.microbatch);
      Uses &activation = activations[{action.stage, w}], &gradient = gradients[{action.stage, w}];
      const bool backward = action.kind == Kind::Backward;
      if (action.kind == Kind::Forward) activation.begin(local, i);
      if (backward || action.kind == Kind::InputGrad) gradient.begin(local, i);
      if (backward || action.kind == Kind::WeightGrad) gradient.end(local, i);
      if (backward || action.kind == Kind::WeightGrad || !compute.trains_on(action.stage)) activation.end(local, i);
    }
  }
  SlotCounts counts;
  for (int stage = 0; stage < compute.pipeline.num_stages(); ++stage) {
    std::vector<const Uses*> replicas;
    for (const auto& [place, uses] : activations) {
      if (place.first == stage) replicas.push_back(&uses);
    }
    counts.activations.push_back(enough_slots(replicas, spare));
  }
  std::vector<const Uses*> all;
  for (const auto& [place, uses] : gradients) all.push_back(&uses);
  counts.gradients = enough_slots(all, spare);
  return counts;
}

}  // namespace millrace::schedule
