// What each operator of a model costs on this machine: parallel.balance: time cuts by it.
#pragma once

#include <vector>

#include "millrace/comm/process.h"
#include "millrace/job/job.h"
#include "millrace/profile/profile.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/training.h"

namespace millrace::runtime {

// Seconds of each operator for one micro-batch, all its passes; of its update, which comes once a step, its share.
std::vector<double> op_seconds(const profile::Profile& profile, int microbatches);

// Measured by process 0 for all: they must cut alike. Together with all other processes.
std::vector<double> measure_op_seconds_together(comm::Process& process, const job::Job& job, int threads,
                                                const MachineLimit& limit, const OnMeasure& on_measure);

}  // namespace millrace::runtime
