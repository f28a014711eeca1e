// This machine, or the processes that were started, as a cluster that was measured.
#pragma once

#include "millrace/comm/process.h"
#include "millrace/plan/cluster.h"

namespace millrace::cli {

// A device is a core that one worker runs on, or a GPU.
plan::Cluster detect_threads();
plan::Cluster detect_gpus();

// A device is one of two processes; hosts are taken to be alike. Together with the other.
plan::Cluster detect_processes(comm::Process& process);

}  // namespace millrace::cli
