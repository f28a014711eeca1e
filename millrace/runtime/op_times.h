// What each operator of a model costs on this machine: parallel.balance: time cuts by it.
#pragma once

#include <string>
#include <vector>

#include "millrace/comm/process.h"
#include "millrace/graph/graph.h"
#include "millrace/job/job.h"
#include "millrace/runtime/device.h"

namespace millrace::runtime {

// Seconds of each operator, all its passes, for one micro-batch on one worker with `threads` threads.
std::vector<double> measure_op_seconds(const job::Job& job, const graph::Graph& graph, int threads, size_t memory_limit,
                                       const std::string& limit_reason, const OnMeasure& on_measure);

// The same, measured by process 0 for all: they must cut alike. Together with all other processes.
std::vector<double> measure_op_seconds_together(comm::Process& process, const job::Job& job, const graph::Graph& graph,
                                                int threads, size_t memory_limit, const std::string& limit_reason,
                                                const OnMeasure& on_measure);

}  // namespace millrace::runtime
