// The steps of a proof (prover.h), in order: each relies on what those before it have established.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "millrace/schedule/prover.h"

namespace millrace::schedule {

constexpr int kNowhere = -1;

// Where in its worker's list a replica deals with one micro-batch.
struct Places {
  int forward = kNowhere;
  int backward_begin = kNowhere;  // the incoming gradient is read from here on
  int gradient_ready = kNowhere;  // the outgoing gradient is complete
  int backward_end = kNowhere;    // activations and incoming gradient are needed no more
  int parts = 0;                  // of the Backward, seen so far
  // By Direction, over all messages of the kind.
  int first_post[2] = {kNowhere, kNowhere};
  int last_send[2] = {kNowhere, kNowhere};
};

struct Replica {
  int stage = 0;
  int index = 0;
  int worker = 0;
  std::vector<int> microbatches;  // that it takes
  std::vector<Places> places;     // of each of them
};

class Proof {
 public:
  explicit Proof(const Schedule& schedule);

  const Schedule& schedule() const { return schedule_; }
  const Pipeline& pipeline() const { return schedule_.pipeline; }
  const std::vector<Action>& list(int worker) const { return schedule_.workers[worker]; }
  const Action& action(int worker, int place) const { return schedule_.workers[worker][place]; }
  std::vector<Replica>& replicas() { return replicas_; }
  const std::vector<Replica>& replicas() const { return replicas_; }
  // The replica of the stage on the worker, which must run it.
  Replica& replica(int stage, int worker) { return replicas_[number_[stage][worker]]; }
  bool runs(int stage, int worker) const { return number_[stage][worker] != kNowhere; }
  Places& places(int stage, int worker, int microbatch) {
    return replica(stage, worker).places[local_index(pipeline(), stage, microbatch)];
  }
  std::string text(int worker, int place) const { return to_text(schedule_, action(worker, place)); }

 private:
  const Schedule& schedule_;
  std::vector<Replica> replicas_;
  std::vector<std::vector<int>> number_;  // [stage][worker] in replicas_
};

using Verdict = std::optional<Fault>;

template <typename... Args>
Fault fault_at(int worker, int place, fmt::format_string<Args...> format, Args&&... args) {
  return {worker, place, fmt::format(format, std::forward<Args>(args)...)};
}

// The pipeline can be what it says, and every action is about something that exists on its worker.
Verdict check_shape(const Schedule& schedule);
Verdict check_slots(const Schedule& schedule);
// Every micro-batch once, forward before backward. Fills in the places of compute actions.
Verdict check_compute(Proof& proof);
// Exactly the messages that the pipeline needs, posted, sent and received once. Fills in the places of messages.
Verdict check_messages(Proof& proof);
// Written before read, and not overwritten before read.
Verdict check_buffers(const Proof& proof);
// Versions, gradients and updates.
Verdict check_weights(const Proof& proof);
// Nobody waits for what can never happen.
Verdict check_progress(const Proof& proof);

}  // namespace millrace::schedule
