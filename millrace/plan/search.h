// The fastest plan for a profile on a cluster: where the operators, in topological order, are cut into stages, and
// which devices run each. Exact under the model of stage_cost.h, by dynamic programming from the end of the model over
// (operators left, devices taken of each kind, stages so far).
//
// What is searched: every cut; for a stage any number of devices of one kind (equal speed and memory), taken in the
// order of the cluster, so that neighbours in the pipeline are neighbours in the cluster; devices at the beginning may
// stay idle. Beyond that one stage on all devices of all kinds, and one device per stage in the order of the cluster.
// Among equals the first in a fixed order wins.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/plan/stage_cost.h"

namespace millrace::plan {

struct SearchStage {
  int first = 0, last = 0;   // operators, both included
  std::vector<int> devices;  // of the cluster, one per replica
  StageCost cost;
};

struct SearchPlan {
  std::vector<SearchStage> stages;
  double step_s = 0;  // of one update in synchronous modes, of one minibatch in the others
  bool fits = true;   // in the memory of every device
};

struct SearchResult {
  std::optional<SearchPlan> best;
  std::optional<SearchPlan> runner_up;          // the best with another number of stages
  SearchPlan data_parallel;                     // one stage on all devices; it may not fit
  std::optional<SearchPlan> straight_pipeline;  // one device per stage on all devices (or operators, if fewer); it may
                                                // not fit
  std::string refusal;  // where nothing fits: one line with the arithmetic of the plan that needs least
  size_t examined = 0;  // stages whose cost was looked at
};

SearchResult search(const profile::Profile& profile, const Cluster& cluster, const CostOptions& options);

}  // namespace millrace::plan
