// Names for all messages of a plan, the same on every worker: a number per (edge, value, direction, replicas at both
// ends, micro-batch modulo a window larger than what can be in flight).
#pragma once

#include <utility>
#include <vector>

#include "millrace/comm/endpoint.h"
#include "millrace/plan/plan.h"

namespace millrace::runtime {

class Wiring {
 public:
  Wiring(const plan::Plan& plan, int most_slots);

  int num_tags() const { return num_channels_ * window_; }
  int window() const { return window_; }
  // Workers that messages go from and to.
  std::vector<std::pair<int, int>> pairs() const;
  // The first tag of a channel; micro-batch m uses the tag m % window() after it.
  int channel(int edge, size_t value, schedule::Direction direction, int from_replica, int to_replica) const;

 private:
  const plan::Plan& plan_;
  int window_;
  std::vector<int> first_channel_;  // per edge
  int num_channels_ = 0;
};

}  // namespace millrace::runtime
