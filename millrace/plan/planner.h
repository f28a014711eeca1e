// Chooses how a job runs on a cluster: mode, micro-batches, cuts, devices, shares of the rows and buckets. The search
// (search.h) finds good pipelines under a model of costs; the best of every mode and number of micro-batches, with
// data parallelism and the straight pipeline beside them, are then predicted as they would run, and the fastest that
// fits is taken. The same input gives the same choice.
#pragma once

#include <string>
#include <vector>

#include "millrace/job/job.h"
#include "millrace/plan/cluster.h"
#include "millrace/plan/plan.h"
#include "millrace/plan/predict.h"
#include "millrace/profile/profile.h"

namespace millrace::plan {

struct Candidate {
  job::Parallel parallel;  // what the job would say
  Plan plan;
  Prediction prediction;
  bool fits() const { return prediction.refusal.empty(); }
};

struct Choice {
  // The choice, then those that fit by predicted step, then those that do not. The choice is the simplest of those that
  // are about as fast as the fastest, and of as simple ones the one that sends least.
  std::vector<Candidate> candidates;
  // Of `candidates`, -1 where there is none.
  int data_parallel = -1;
  int straight_pipeline = -1;  // one device per stage, on all devices
  int runner_up = -1;          // the best of another mode or another number of stages
};

// Modes that leave the result what it would be on one device.
std::vector<job::Mode> synchronous_modes();

// `modes`: those that may be chosen. `profiles` as for predict(). The job's own micro-batches are kept if it asks for
// more than one. Refuses, with the arithmetic, where nothing fits.
Choice choose(const job::Job& job, const std::vector<profile::Profile>& profiles, const Cluster& cluster,
              const std::vector<job::Mode>& modes);

// "1f1b, 8 micro-batches, stages on 0:0 | 0:1"
std::string to_text(const Candidate& candidate);

}  // namespace millrace::plan
