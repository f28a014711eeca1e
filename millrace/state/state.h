// Training state by global name: it knows nothing of stages, replicas or layouts, so a run can be saved under
// one plan and continued under another.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/shape.h"
#include "millrace/graph/graph.h"
#include "millrace/job/calendar.h"

namespace millrace::state {

struct Tensor {
  Shape shape;
  std::vector<float> data;  // row-major
  bool operator==(const Tensor&) const = default;
};

struct State {
  std::map<std::string, Tensor> params;  // parameters and running statistics
  // Of the optimizer; one that is missing is zero.
  std::map<std::string, Tensor> velocity;
  std::map<std::string, Tensor> second_moment = {};
  // Where gradients are watched: the sum of squares of each parameter's, over the updates of the interval so far.
  std::map<std::string, Tensor> watched = {};
  // Asynchronous modes: the weights before the last update, before the one before that, and so on, as far back as the
  // parameter's stage reads.
  std::vector<std::map<std::string, Tensor>> older = {};
  // Updates that a parameter has had; stages may differ where replicas take minibatches in turn.
  std::map<std::string, int64_t> updates = {};
  // fp16: the scale, good steps since it last changed, steps left out; empty: as the job says
  std::vector<float> loss_scale = {};
  int64_t step = 0;             // the next one: where the data, the rates and all random numbers go on
  int64_t samples = 0;          // samples seen
  job::SizedSince since = {};   // where a batch has grown
  bool evaluation_due = false;  // at this step: it was asked to end before it could be made
  bool operator==(const State&) const = default;
};

// The kinds of tensors that parameters have, and which of each there are.
inline constexpr std::array kKinds = {&State::params, &State::velocity, &State::second_moment};
using Names = std::array<std::map<std::string, Shape>, kKinds.size()>;

// Every parameter filled as its Init says. Its numbers depend on the seed and its name alone, not on the other
// parameters, their order, or the number of threads.
State initial_state(const graph::Graph& graph, uint64_t seed);

// The tensors and counts of `part` that `state` does not have yet; `part` is left without them.
void merge(State& state, State& part);

// For another process of the same run: bytes as they lie in memory.
std::string to_bytes(const State& state);
State state_from_bytes(const std::string& bytes);

}  // namespace millrace::state
