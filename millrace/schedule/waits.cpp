#include "millrace/schedule/waits.h"

#include <algorithm>
#include <map>
#include <utility>

namespace millrace::schedule {
namespace {

// The buffers of one kind that a replica writes in turn, and the messages that still read them.
class OutgoingBuffers {
 public:
  explicit OutgoingBuffers(int slots) : buffers_(std::max(slots, 1)) {}

  // Messages to wait for before what belongs to micro-batch l is written.
  std::vector<int> write(int l) {
    Buffer& buffer = at(l);
    if (buffer.owner == l) return {};
    buffer.owner = l;
    return std::exchange(buffer.readers, {});
  }
  void read(int l, int message) { at(l).readers.push_back(message); }

 private:
  struct Buffer {
    int owner = -1;
    std::vector<int> readers;
  };
  Buffer& at(int l) { return buffers_[l % buffers_.size()]; }
  std::vector<Buffer> buffers_;
};

}  // namespace

int updates_in(const Schedule& schedule, int stage) {
  if (!schedule.trains_on(stage) || schedule.microbatches == 0) return 0;
  return update_of(schedule.pipeline, stage, schedule.microbatches - 1) + 1;
}

Waits::Waits(const Schedule& schedule) : schedule_(schedule), messages_(schedule) {
  for (const std::vector<Action>& list : schedule.workers) {
    for (const Action& action : list) compute_only_ &= is_compute(action.kind);
  }
  for (size_t i = 0; i < messages_.all().size(); ++i) {
    events_.push_back({static_cast<int>(i), {}, compute_only_ ? 1 : 2});
  }
  const Pipeline& pipeline = schedule.pipeline;
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    const bool summed = pipeline.num_replicas(stage) > 1 && !compute_only_;
    first_sum_.push_back(summed ? static_cast<int>(events_.size()) : -1);
    for (int update = 0; summed && update < updates_in(schedule, stage); ++update) {
      for (int bucket = 0; bucket < pipeline.buckets[stage]; ++bucket) {
        events_.push_back({-1, {stage, update, bucket}, pipeline.num_replicas(stage)});
      }
    }
  }
  if (pipeline.agrees_on_steps && !compute_only_ && schedule.trains) {
    first_agreement_ = static_cast<int>(events_.size());
    int members = 0;
    for (int s = pipeline.frozen; s < pipeline.num_stages(); ++s) members += pipeline.num_replicas(s);
    const int updates = updates_in(schedule, pipeline.num_stages() - 1);
    for (int update = 0; update < updates; ++update) events_.push_back({-1, {-1, update, 0}, members});
  }
  signals_.resize(schedule.workers.size());
  waits_.resize(schedule.workers.size());
  for (size_t w = 0; w < schedule.workers.size(); ++w) {
    signals_[w].resize(schedule.workers[w].size());
    waits_[w].resize(schedule.workers[w].size());
    if (compute_only_) {
      add_compute_list(schedule.workers[w], static_cast<int>(w));
    } else {
      add_lowered_list(schedule.workers[w], static_cast<int>(w));
    }
  }
}

void Waits::add_compute_list(const std::vector<Action>& list, int worker) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    if (action.kind == Kind::WeightGrad) continue;  // after its InputGrad, in the same list
    const Direction direction = action.kind == Kind::Forward ? Direction::Activation : Direction::Gradient;
    waits_[worker][i] = messages_.entering(action.stage, worker, direction, action.microbatch);
    signals_[worker][i] = messages_.leaving(action.stage, worker, direction, action.microbatch);
  }
}

void Waits::add_lowered_list(const std::vector<Action>& list, int worker) {
  std::map<int, OutgoingBuffers> activations, gradients;  // by stage
  const auto wait_for_all = [&](size_t i, const std::vector<int>& messages) {
    waits_[worker][i].insert(waits_[worker][i].end(), messages.begin(), messages.end());
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const int l = local_index(schedule_.pipeline, action.stage, action.microbatch);
    OutgoingBuffers& activation = activations.try_emplace(action.stage, schedule_.slots[action.stage]).first->second;
    OutgoingBuffers& gradient = gradients.try_emplace(action.stage, schedule_.gradient_slots).first->second;
    switch (action.kind) {
      case Kind::Forward: wait_for_all(i, activation.write(l)); break;
      case Kind::Backward:
      case Kind::InputGrad: wait_for_all(i, gradient.write(l)); break;
      case Kind::WeightGrad: break;
      case Kind::Post:
        if (action.direction == Direction::Activation) wait_for_all(i, activation.write(l));
        signals_[worker][i].push_back(messages_.find(action, worker));
        break;
      case Kind::Send: {
        const int message = messages_.find(action, worker);
        (action.direction == Direction::Activation ? activation : gradient).read(l, message);
        signals_[worker][i].push_back(message);
        break;
      }
      case Kind::Receive: wait_for_all(i, {messages_.find(action, worker)}); break;
      case Kind::Reduce: signals_[worker][i].push_back(sum_event(action)); break;
      case Kind::Step:
        if (action.part != kWhole) wait_for_all(i, {sum_event(action)});
        if (first_agreement_ >= 0 && ends_update(action)) {
          // What comes before it in the list is done: with the sums that are waited for, that is all there is to find.
          signals_[worker][i - 1].push_back(first_agreement_ + action.microbatch);
          wait_for_all(i, {first_agreement_ + action.microbatch});
        }
        break;
    }
  }
}

bool Waits::ends_update(const Action& step) const {
  return step.part == kWhole || step.part + 1 == schedule_.pipeline.buckets[step.stage];
}

int Waits::sum_event(const Action& action) const {
  return first_sum_[action.stage] + action.microbatch * schedule_.pipeline.buckets[action.stage] + action.part;
}

}  // namespace millrace::schedule
