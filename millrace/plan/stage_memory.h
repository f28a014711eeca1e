// What a replica of a stage will hold, before anything is prepared: the layout that a run would make, with the sizes
// of values as the model says them and the workspace of a profile.
#pragma once

#include "millrace/graph/program.h"
#include "millrace/memory/stage_layout.h"
#include "millrace/plan/stage_cost.h"
#include "millrace/profile/profile.h"

namespace millrace::plan {

struct StageMemoryOptions {
  graph::TrainingOptions training;
  memory::Copies copies;
  bool evaluates = false;
  bool recompute = false;
};

// `graph` and `profile` are of the rows that the replica takes.
StageMemory stage_memory(const graph::Graph& graph, const profile::Profile& profile, const StageMemoryOptions& options);

}  // namespace millrace::plan
