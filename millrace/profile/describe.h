// The part of a profile that needs no clock: operators, edges and bytes of a training program.
#pragma once

#include <cstdint>
#include <functional>

#include "millrace/graph/program.h"
#include "millrace/profile/profile.h"

namespace millrace::profile {

// `program` is the whole model's. `bytes` of its buffers, as they lie in memory.
Profile describe(const graph::Graph& graph, const graph::Program& program,
                 const std::function<int64_t(graph::BufferId)>& bytes);

}  // namespace millrace::profile
