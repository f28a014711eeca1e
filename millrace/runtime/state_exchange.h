// The state's way from one training of several processes to the next: every process keeps what it has, and only what
// it has not moves, from one that has it.
#pragma once

#include <cstdint>

#include "millrace/comm/process.h"
#include "millrace/runtime/session.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

struct ExchangedState {
  state::State state;       // of the wanted parameters, all that any process has
  int64_t moved_bytes = 0;  // between all processes
};

// Together with all other processes. `own`: of every stage that this process has, also of those that others have the
// same of. Its place in the run is process 0's. Older versions of weights stay behind: nobody reads them any more.
ExchangedState exchange_state(comm::Process& process, state::State own, const Session::Wanted& wanted);

}  // namespace millrace::runtime
