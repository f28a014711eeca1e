#include "millrace/schedule/messages.h"

#include <algorithm>

namespace millrace::schedule {

int sending_stage(const Edge& edge, Direction direction) {
  return direction == Direction::Activation ? edge.from : edge.to;
}

int receiving_stage(const Edge& edge, Direction direction) {
  return direction == Direction::Activation ? edge.to : edge.from;
}

int replica_on(const Pipeline& pipeline, int stage, int worker) {
  const std::vector<int>& workers = pipeline.stages[stage];
  const auto found = std::find(workers.begin(), workers.end(), worker);
  return found == workers.end() ? -1 : static_cast<int>(found - workers.begin());
}

namespace {

// The part of a micro-batch's rows that two replicas have in common.
double common_share(const Pipeline& pipeline, int stage, int replica, int other, int other_replica) {
  const Rows a = replica_rows(pipeline, stage, replica);
  const Rows b = replica_rows(pipeline, other, other_replica);
  const int64_t common = std::min(a.end, b.end) - std::max(a.begin, b.begin);
  return static_cast<double>(common) / static_cast<double>(pipeline.rows);
}

}  // namespace

MessageList::MessageList(const Schedule& schedule)
    : pipeline_(schedule.pipeline), microbatches_(schedule.microbatches) {
  for (int e = 0; e < static_cast<int>(pipeline_.edges.size()); ++e) {
    for (const Direction direction : {Direction::Activation, Direction::Gradient}) {
      const int from = sending_stage(pipeline_.edges[e], direction),
                to = receiving_stage(pipeline_.edges[e], direction);
      for (int m = 0; m < microbatches_; ++m) {
        begin_.push_back(all_.size());
        if (direction == Direction::Gradient && !schedule.trains_on(to)) continue;
        for (int sender = 0; sender < pipeline_.num_replicas(from); ++sender) {
          if (!takes(pipeline_, from, sender, m)) continue;
          for (int receiver = 0; receiver < pipeline_.num_replicas(to); ++receiver) {
            if (!takes(pipeline_, to, receiver, m)) continue;
            const double share = common_share(pipeline_, from, sender, to, receiver);
            if (share <= 0) continue;
            all_.push_back({e, direction, m, pipeline_.stages[from][sender], pipeline_.stages[to][receiver], share});
          }
        }
      }
    }
  }
  begin_.push_back(all_.size());
}

size_t MessageList::group(int edge, Direction direction, int microbatch) const {
  return (static_cast<size_t>(edge) * 2 + static_cast<size_t>(direction)) * microbatches_ + microbatch;
}

int MessageList::find(const Action& action, int worker) const {
  if (action.edge < 0 || action.edge >= static_cast<int>(pipeline_.edges.size())) return -1;
  if (action.microbatch < 0 || action.microbatch >= microbatches_) return -1;
  const int from = action.kind == Kind::Send ? worker : action.peer,
            to = action.kind == Kind::Send ? action.peer : worker;
  const size_t g = group(action.edge, action.direction, action.microbatch);
  for (size_t i = begin_[g]; i < begin_[g + 1]; ++i) {
    if (all_[i].from == from && all_[i].to == to) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int> MessageList::entering(int stage, int worker, Direction direction, int microbatch) const {
  std::vector<int> found;
  for (int e = 0; e < static_cast<int>(pipeline_.edges.size()); ++e) {
    if (receiving_stage(pipeline_.edges[e], direction) != stage) continue;
    const size_t g = group(e, direction, microbatch);
    for (size_t i = begin_[g]; i < begin_[g + 1]; ++i) {
      if (all_[i].to == worker) found.push_back(static_cast<int>(i));
    }
  }
  return found;
}

std::vector<int> MessageList::leaving(int stage, int worker, Direction direction, int microbatch) const {
  std::vector<int> found;
  for (int e = 0; e < static_cast<int>(pipeline_.edges.size()); ++e) {
    if (sending_stage(pipeline_.edges[e], direction) != stage) continue;
    const size_t g = group(e, direction, microbatch);
    for (size_t i = begin_[g]; i < begin_[g + 1]; ++i) {
      if (all_[i].from == worker) found.push_back(static_cast<int>(i));
    }
  }
  return found;
}

}  // namespace millrace::schedule
