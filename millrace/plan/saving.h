// What a replica of a stage holds of checkpoints: the snapshot that is written while training goes on.
#pragma once

#include <cstdint>

#include "millrace/graph/graph.h"
#include "millrace/job/job.h"
#include "millrace/plan/plan.h"

namespace millrace::plan {

// Bytes of the memory that the stage is planned in; nothing of a GPU's, and nothing where none are made on the way.
int64_t saving_bytes(const job::Job& job, const graph::Graph& graph, const Plan& plan, int stage, int replica);

}  // namespace millrace::plan
