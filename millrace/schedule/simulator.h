// Plays a schedule against costs: when each action runs, how long all of it takes and what it holds meanwhile. Workers
// do one action after another; messages and sums go on beside them. A worker sends one message at a time and receives
// one, a stage sums one bucket at a time.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

struct Link {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

// What a replica's share of a micro-batch takes, and its update.
struct ReplicaCosts {
  double forward_s = 0, input_grad_s = 0, weight_grad_s = 0;
  double step_s = 0;
  // Where backward and update go bucket by bucket: of each; empty: equal parts of the above.
  std::vector<double> backward_part_s, step_part_s;
};

// What is left empty is free.
struct Costs {
  std::vector<std::vector<ReplicaCosts>> replicas;   // [stage][replica]
  std::vector<std::array<double, 2>> message_bytes;  // per edge: activation, gradient of all rows of a micro-batch
  std::vector<std::vector<Link>> links;              // [from worker][to worker]
  std::vector<std::vector<double>> reduce_s;         // [stage][bucket]
};

// Costs of a worker's share of the model: where a worker runs v stages, each costs 1 / v. Communication is free.
Costs unit_costs(const Pipeline& pipeline, double forward_s, double input_grad_s, double weight_grad_s);

struct Span {
  double begin_s = 0;  // when all it waits for is there
  double end_s = 0;
};

struct Timeline {
  double makespan_s = 0;
  std::vector<std::vector<Span>> actions;  // as Schedule::workers
  // Per worker: most activations alive, from the beginning of Forward to the end of Backward (WeightGrad), where those
  // of all its stages together count 1.
  std::vector<double> peak_activations;
};

// Takes lists with or without messages; without them, communication is free. What the lists name must exist (see
// prover.h); lists that cannot finish are refused.
Timeline simulate(const Schedule& schedule, const Costs& costs);

// The share of the workers' time in which they compute nothing.
double bubble(const Schedule& schedule, const Timeline& timeline);

}  // namespace millrace::schedule
