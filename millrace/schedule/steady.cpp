#include "millrace/schedule/steady.h"

#include <algorithm>

namespace millrace::schedule {

Schedule steady_lists(const Pipeline& pipeline) {
  int in_flight = 1;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    in_flight = std::max(in_flight, pipeline.versions[s] * pipeline.num_replicas(s));
  }
  return lower(compute_schedule(pipeline, pipeline.synchronous() ? 1 : 4 * in_flight));
}

double replica_seconds(const Pipeline& pipeline, int stage, const ReplicaCosts& costs) {
  double microbatches = pipeline.synchronous() ? pipeline.microbatches : 1, updates = 1;
  if (pipeline.replicas == job::Replicas::RoundRobin) {
    microbatches /= pipeline.num_replicas(stage);
    if (!pipeline.synchronous()) updates /= pipeline.num_replicas(stage);
  }
  return microbatches * (costs.forward_s + costs.input_grad_s + costs.weight_grad_s) + updates * costs.step_s;
}

std::vector<double> worker_seconds(const Pipeline& pipeline, const Costs& costs) {
  std::vector<double> seconds(pipeline.num_workers, 0);
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    for (int r = 0; r < pipeline.num_replicas(s); ++r) {
      seconds[pipeline.stages[s][r]] += replica_seconds(pipeline, s, costs.replicas[s][r]);
    }
  }
  return seconds;
}

double steady_step_s(const Schedule& shape, const Costs& costs) {
  const Pipeline& pipeline = shape.pipeline;
  auto makespan_s = [&](int updates) {
    Schedule lists = compute_schedule(pipeline, updates);
    lists.slots = shape.slots;
    lists.gradient_slots = shape.gradient_slots;
    return simulate(lower(std::move(lists)), costs).makespan_s;
  };
  const int few = pipeline.synchronous() ? 1 : 8 * pipeline.num_workers, more = 2 * few;
  return (makespan_s(more) - makespan_s(few)) / (more - few);
}

}  // namespace millrace::schedule
