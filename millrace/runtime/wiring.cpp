#include "millrace/runtime/wiring.h"

namespace millrace::runtime {

Wiring::Wiring(const plan::Plan& plan, int most_slots) : plan_(plan), window_(2 * most_slots + 2) {
  for (const graph::StageEdge& edge : plan.edges) {
    first_channel_.push_back(num_channels_);
    num_channels_ += static_cast<int>(edge.values.size()) * 2 * plan.pipeline.num_replicas(edge.from) *
                     plan.pipeline.num_replicas(edge.to);
  }
}

int Wiring::channel(int edge, size_t value, schedule::Direction direction, int from_replica, int to_replica) const {
  const schedule::Edge& ends = plan_.pipeline.edges[edge];
  int channel = static_cast<int>(value) * 2 + static_cast<int>(direction);
  channel = channel * plan_.pipeline.num_replicas(ends.from) + from_replica;
  channel = channel * plan_.pipeline.num_replicas(ends.to) + to_replica;
  return (first_channel_[edge] + channel) * window_;
}

}  // namespace millrace::runtime
