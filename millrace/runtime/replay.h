// Plays a run's schedule through the simulator with the times that the run itself took: what a step should have taken
// if nothing but the schedule held the workers up.
#pragma once

#include <optional>
#include <vector>

#include "millrace/plan/plan.h"
#include "millrace/runtime/worker_record.h"
#include "millrace/schedule/schedule.h"

namespace millrace::runtime {

// Seconds of a step in the steady state.
struct Replay {
  double step_s = 0;           // with the medians of the run
  double balanced_step_s = 0;  // if all workers had as much to do
  double busy_s = 0;           // of a worker, the mean
};

// Nothing where the records hold too few steps. `shape` gives the slots.
std::optional<Replay> replay(const plan::Plan& plan, const schedule::Schedule& shape,
                             const std::vector<WorkerRecord>& records);

}  // namespace millrace::runtime
