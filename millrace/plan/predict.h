// What a plan will take on a cluster, in time, memory and bytes on the wire: the lists that would run, played through
// the simulator with the times of a profile, and the memory that would be laid out.
#pragma once

#include <string>
#include <vector>

#include "millrace/job/job.h"
#include "millrace/plan/cluster.h"
#include "millrace/plan/plan.h"
#include "millrace/plan/stage_cost.h"
#include "millrace/profile/profile.h"
#include "millrace/schedule/simulator.h"

namespace millrace::plan {

struct StagePrediction {
  double compute_s = 0;  // of a step, on its slowest replica, the update included
  StageMemory memory;    // of the replica that needs most
};

struct LinkLoad {
  int from = 0, to = 0;  // workers
  double bytes = 0;      // of a step
};

struct Prediction {
  double step_s = 0;
  double samples_per_s = 0;
  double bubble_share = 0;  // of the workers' time, what they do not compute
  std::vector<StagePrediction> stages;
  std::vector<double> worker_bytes;
  std::vector<LinkLoad> links;  // messages and, as a ring passes them on, sums
  std::string refusal;          // of the first worker whose memory does not suffice: one line; empty: all fit
  // What it was made of.
  schedule::Schedule shape;
  schedule::Costs costs;
};

// `profiles` of the job's model on a device of speed 1, at one or more numbers of rows. `cluster` must have the devices
// of the plan.
Prediction predict(const job::Job& job, const Plan& plan, const std::vector<profile::Profile>& profiles,
                   const Cluster& cluster);

}  // namespace millrace::plan
