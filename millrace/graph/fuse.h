// Merges operators whose pair needs one pass over memory instead of two: conv + ReLU, linear + ReLU, and
// batch norm + [residual add] + [ReLU]. The merged operator keeps the name and parameters of the first. A ReLU
// before a max-pool is first moved behind it: the two commute, and the mask of the backward pass then covers the
// pooled values alone.
#pragma once

#include "millrace/graph/graph.h"

namespace millrace::graph {

Graph fuse(const Graph& graph);

}  // namespace millrace::graph
