// What a job's operators cost on its device, measured: every node of a training step timed alone, beside the same step
// timed whole.
#pragma once

#include "millrace/job/job.h"
#include "millrace/profile/profile.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/session.h"
#include "millrace/runtime/training.h"

namespace millrace::runtime {

struct ProfilingOptions {
  int64_t rows = 0;  // of a micro-batch; 0: the job's
  int threads = 0;   // 0: the job's
  int beside = 0;    // workers that run the same steps meanwhile: neighbours share caches, memory and clock
  int repeats = 9;   // steps that are timed, node by node, and as many that are timed whole
  // While the two are further apart than `kLargestGap` all of it is measured again, at most so often: what disturbs a
  // machine often passes. The attempt with the shortest whole step, the least disturbed, is kept.
  int attempts = 4;
};
constexpr double kLargestGap = 0.05;

// The sum of all passes of all operators.
double sum_s(const profile::Profile& profile);
// How far the sum is from the step: 0.02 is 2% above it.
double gap(const profile::Profile& profile);

struct Profiled {
  profile::Profile profile;
  int attempts = 0;
};

// A step of one micro-batch on one worker, its update included. Steps before the first timed one are not counted.
Profiled measure_profile(const job::Job& job, const ProfilingOptions& options, const MachineLimit& limit,
                         const OnMeasure& on_measure = {});

// The part that needs no clock: operators, edges, bytes and algorithms of a prepared session.
profile::Profile describe_operators(const Session& session);

}  // namespace millrace::runtime
