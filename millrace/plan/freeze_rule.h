// Which layers stand still from when on (PipeTransformer's AutoFreeze). At the end of every interval
//
//   gradient   L(T) = min(L(T-1) + ceil(alpha (N - L(T-1))), the first layer, counted from 0, whose gradients were
//              smallest of those from L(T-1) to N): the layer itself goes on learning
//   schedule   L(T) = ceil(N (1 - (1 - alpha)^T))
//
// layers are frozen, of N that can be and one more, the task's own, that cannot. The size of a layer's gradient is the
// root of the sum of squares of all its parameters, over all updates of the interval. Pure functions of numbers that
// are the same on every topology.
//
// With a guard, a test loss too far above the best one takes back the last freezing of which it is, with all that was
// frozen since, and nothing more is frozen until the loss has recovered.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "millrace/graph/graph.h"
#include "millrace/job/job.h"

namespace millrace::plan {

// What the rule remembers from one interval to the next.
struct FreezeState {
  int frozen = 0;     // now
  int before = 0;     // the last freezing
  int intervals = 0;  // decided
  // The last evaluation: its loss, and what a guard goes back to if that is too much.
  struct Evaluation {
    double loss = 0;
    int before = 0;  // the freezing that was the last one then
    bool operator==(const Evaluation&) const = default;
  };
  std::optional<Evaluation> evaluation;
  double best_loss = std::numeric_limits<double>::infinity();  // of all evaluations so far
  int64_t decided_at = -1;                                     // the step before which the last decision was taken
  // Decided, but not yet done: so many layers are frozen from step `boundary` on; -1: nothing is.
  int next = -1;
  int64_t boundary = -1;
  bool operator==(const FreezeState&) const = default;
};

struct FreezeDecision {
  int frozen = 0;   // from the decision's boundary on
  std::string why;  // one line, for people
};

// When it is decided and done. An interval ends with a boundary; the decision is taken a little before it, so that what
// follows can be prepared while training goes on. Both are the same on every topology and every machine.
struct Decision {
  int64_t at = 0;        // before this step
  int64_t boundary = 0;  // it holds from this step on
};
// The next one that is taken at or after step `from`; nothing where none is left before the end.
std::optional<Decision> next_decision(const job::Elastic& elastic, double steps_per_epoch, int64_t total_steps,
                                      int64_t from);

// An evaluation was made.
void judge_freezing(double test_loss, FreezeState& state);
// `squares`: of each layer 0 ... N, N being the task's own; not read by Freeze::Schedule. Where something changes,
// `state` holds it in `next` until it is done.
FreezeDecision decide_freezing(const job::Elastic& elastic, int layers, const Decision& when,
                               const std::vector<double>& squares, FreezeState& state);
// The boundary is reached.
void apply_freezing(FreezeState& state);

// Squares of each layer 0 ... N from those of each parameter. What comes before the first layer belongs to it.
std::vector<double> layer_squares(const graph::Graph& graph, const std::vector<float>& param_squares);

}  // namespace millrace::plan
