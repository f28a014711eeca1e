// The state's way from one training of several processes to the next: every process keeps what it has, and only what
// it has not moves, from one that has it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "millrace/comm/process.h"
#include "millrace/runtime/session.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

// What a process has, and the way in and out of wherever that lies.
struct StateEnd {
  state::Names has;
  std::function<bool(size_t kind, const std::string& name)> wants;  // of what it does not have
  std::function<std::span<const float>(size_t kind, const std::string& name)> read;
  // Where a tensor is to come, and that it has.
  std::function<std::span<float>(size_t kind, const std::string& name, const Shape& shape)> room;
  std::function<void(size_t kind, const std::string& name)> come;
};

// Together with all other processes. `rest`: what belongs to no tensor, of which this process knows its part; its place
// in the run is process 0's. All of it comes back.
struct Exchanged {
  state::State rest;
  int64_t moved_bytes = 0;  // between all processes
};
Exchanged exchange_state(comm::Process& process, const StateEnd& end, const state::State& rest);

// The same of states.
struct ExchangedState {
  state::State state;  // of the wanted parameters, all that any process has
  int64_t moved_bytes = 0;
};
// `own`: of every stage that this process has, also of those that others have the same of. Older versions of weights
// stay behind: nobody reads them any more.
ExchangedState exchange_state(comm::Process& process, state::State own, const Session::Wanted& wanted);

}  // namespace millrace::runtime
