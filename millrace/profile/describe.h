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

// The time of an operator's pass.
Seconds& seconds_of(Operator& op, graph::Pass pass);
const Seconds& seconds_of(const Operator& op, graph::Pass pass);

}  // namespace millrace::profile
