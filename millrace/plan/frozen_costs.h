// What frozen layers cost, by a profile that was measured before they were.
#pragma once

#include "millrace/graph/graph.h"
#include "millrace/job/job.h"
#include "millrace/profile/profile.h"

namespace millrace::plan {

// Their forward alone; with elastic.cache not even that, but they are then one piece, on the stage that reads the data.
void price_frozen(const job::Job& job, const graph::Graph& graph, profile::Profile& profile);

}  // namespace millrace::plan
