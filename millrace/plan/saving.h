// What a replica of a stage holds of checkpoints: the snapshot that is written while training goes on. On the host it
// is the state in plain layout, without which none is written. A GPU has a copy of what that is made from, if there is
// room for it beside all else; if not, the worker waits before an update until its weights have been read.
#pragma once

#include <cstdint>

#include "millrace/graph/graph.h"
#include "millrace/job/job.h"
#include "millrace/plan/plan.h"

namespace millrace::plan {

// Whether a GPU is to have a copy: of StageLayout::state_bytes(). Nothing where no checkpoints are made on the way.
bool copies_on_device(const job::Job& job, int replica);

// Bytes of the host's memory, where that is what the stage is planned in.
int64_t saving_bytes(const job::Job& job, const graph::Graph& graph, const Plan& plan, int stage, int replica);

}  // namespace millrace::plan
