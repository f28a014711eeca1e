// PipeDream's own planner (SOSP'19): the cheapest pipeline under its model of cost, for comparison with what it
// published. Millrace plans with search.h.
//
// The model, in seconds per minibatch. A level is a number of equal workers joined at B bytes per second; a worker of
// the innermost level is a device, of a further one a whole group of the level before. For a slice of the model let T
// be its time on one worker, forward and backward (on a group: its cost at the level before), P the bytes of its
// parameters and a the bytes of what operators within it hand to operators after it.
//
//   one stage, m replicas       [T + 4 (m - 1) P / (B m) / n] / m      n: workers of the level before, 1 at the
//   innermost
//   ... then a stage k+1..j     max of the cost before it, [T + 4 (m' - 1) P / (B m')] / m',
//       with m' replicas        2 a_k / (B m') and, unless j is the end of the model, 2 a_j / (B m')
//
// Replicas take minibatches in turn, hence the division by m; activations and parameters are those of a whole
// minibatch. Compute and communication of the parameters are summed, not overlapped; memory is no limit. All workers
// are used.
//
// A slice ends at a prefix of the model: a set of operators with all that they read. A chain of n operators has n + 1
// prefixes. A graph with branches has more; all of them are considered up to a limit, beyond it those of the
// topological order.
#pragma once

#include <span>
#include <vector>

#include "millrace/profile/profile.h"

namespace millrace::plan {

struct PipeDreamLevel {
  int workers = 1;
  double bytes_per_s = 0;
};

struct PipeDreamStage {
  std::vector<int> operators;  // in topological order
  int replicas = 1;            // devices
  double compute_s = 0;        // of one minibatch on one device
};

struct PipeDreamPlan {
  double cost_s = 0;
  double data_parallel_s = 0;  // the same model's cost of one stage on all devices
  std::vector<PipeDreamStage> stages;
  bool all_prefixes = true;  // false: the graph has more than could be considered
  size_t num_prefixes = 0;
};

// Levels innermost first. Refuses with std::invalid_argument what has no operators or no bandwidth.
PipeDreamPlan pipedream_plan(const profile::Profile& profile, std::span<const PipeDreamLevel> levels);

}  // namespace millrace::plan
