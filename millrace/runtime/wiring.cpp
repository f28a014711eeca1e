#include "millrace/runtime/wiring.h"

#include <algorithm>
#include <set>

namespace millrace::runtime {

Wiring::Wiring(const plan::Plan& plan, int most_slots) : plan_(plan), window_(2 * most_slots + 2) {
  for (const graph::StageEdge& edge : plan.edges) {
    first_channel_.push_back(num_channels_);
    num_channels_ += static_cast<int>(edge.values.size()) * 2 * plan.pipeline.num_replicas(edge.from) *
                     plan.pipeline.num_replicas(edge.to);
  }
}

std::vector<std::pair<int, int>> Wiring::pairs() const {
  const schedule::Pipeline& pipeline = plan_.pipeline;
  const auto exchange = [&](const schedule::Edge& edge, int from, int to) {
    const schedule::Rows a = plan_.rows(edge.from, from), b = plan_.rows(edge.to, to);
    if (std::max(a.begin, b.begin) >= std::min(a.end, b.end)) return false;
    // In turn, what comes after that comes again.
    const int period = pipeline.num_replicas(edge.from) * pipeline.num_replicas(edge.to);
    for (int m = 0; m < period; ++m) {
      if (takes(pipeline, edge.from, from, m) && takes(pipeline, edge.to, to, m)) return true;
    }
    return false;
  };
  std::set<std::pair<int, int>> pairs;
  for (const schedule::Edge& edge : pipeline.edges) {
    for (int from = 0; from < pipeline.num_replicas(edge.from); ++from) {
      for (int to = 0; to < pipeline.num_replicas(edge.to); ++to) {
        if (!exchange(edge, from, to)) continue;
        const int sender = pipeline.stages[edge.from][from], receiver = pipeline.stages[edge.to][to];
        pairs.emplace(sender, receiver);
        if (pipeline.learns(edge.from)) pairs.emplace(receiver, sender);  // its gradient
      }
    }
  }
  return {pairs.begin(), pairs.end()};
}

int Wiring::channel(int edge, size_t value, schedule::Direction direction, int from_replica, int to_replica) const {
  const schedule::Edge& ends = plan_.pipeline.edges[edge];
  int channel = static_cast<int>(value) * 2 + static_cast<int>(direction);
  channel = channel * plan_.pipeline.num_replicas(ends.from) + from_replica;
  channel = channel * plan_.pipeline.num_replicas(ends.to) + to_replica;
  return (first_channel_[edge] + channel) * window_;
}

}  // namespace millrace::runtime
