// A pipeline in its steady state: the lists it settles into, and what a step then takes.
#pragma once

#include "millrace/schedule/schedule.h"
#include "millrace/schedule/simulator.h"

namespace millrace::schedule {

// Lists long enough to reach the steady state: the slots of every list of a run are those of these.
Schedule steady_lists(const Pipeline& pipeline);

// Computing of one update: of a replica of a stage, and of every worker.
double replica_seconds(const Pipeline& pipeline, int stage, const ReplicaCosts& costs);
std::vector<double> worker_seconds(const Pipeline& pipeline, const Costs& costs);

// What one more update takes once the pipeline is full, with the slots of `shape`.
double steady_step_s(const Schedule& shape, const Costs& costs);

}  // namespace millrace::schedule
