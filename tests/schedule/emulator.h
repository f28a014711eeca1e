// A token machine that runs lowered schedules as schedule.h describes them, with nothing in common with the prover.
// Buffers hold tokens that say what is in them; whoever reads checks them. Workers and messages advance in whatever
// order a policy picks. What goes wrong is found when it happens: a wrong or missing token, a message that reaches a
// buffer that is not open for it, an update from the wrong gradients, a run that stops, and what is left over.
#pragma once

#include <optional>
#include <random>
#include <string>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

enum class Policy {
  FirstWorker,     // the first worker that can go on does; messages pass at once
  LastWorker,      // the same from the other end
  LateMessages,    // messages pass only when no worker can go on
  LatestMessages,  // the same, the youngest first
  Random,
};

// What went wrong, or nothing.
std::optional<std::string> emulate(const Schedule& schedule, Policy policy, uint64_t seed);

}  // namespace millrace::schedule
