#include "millrace/plan/freeze_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::plan {
namespace {

// A product such as 12 * (1 - 2/3) is not to be rounded up for its last digit.
int round_up(double value) { return static_cast<int>(std::ceil(value - 1e-9)); }

FreezeDecision by_schedule(const job::Elastic& elastic, int layers, const FreezeState& state) {
  const int interval = state.intervals;
  const int wanted = round_up(layers * (1 - std::pow(1 - elastic.alpha, interval)));
  const int frozen = std::clamp(wanted, state.frozen, layers);
  return {frozen, fmt::format("interval {} of the schedule", interval)};
}

FreezeDecision by_gradient(const job::Elastic& elastic, int layers, const std::vector<double>& squares,
                           const FreezeState& state) {
  const int most = state.frozen + round_up(elastic.alpha * (layers - state.frozen));
  int smallest = state.frozen;
  for (int layer = state.frozen; layer <= layers; ++layer) {
    if (squares[layer] < squares[smallest]) smallest = layer;
  }
  const double norm = std::sqrt(squares[smallest]);
  if (smallest == state.frozen) {
    return {state.frozen, fmt::format("layer {} is the first that learns and its gradients are the smallest ({:.3g})",
                                      smallest + 1, norm)};
  }
  const std::string which = smallest == layers ? std::string("the head") : fmt::format("layer {}", smallest + 1);
  if (smallest <= most) return {smallest, fmt::format("the gradients of {} are the smallest ({:.3g})", which, norm)};
  return {most, fmt::format("the gradients of {} are the smallest ({:.3g}), but no more than {} of {} layers freeze at "
                            "once",
                            which, norm, most - state.frozen, layers - state.frozen)};
}

int64_t interval_steps(const job::Period& every, double steps_per_epoch) {
  const double steps = every.unit == job::Period::Unit::Epochs ? every.count * steps_per_epoch : every.count;
  return std::max<int64_t>(1, std::llround(steps));
}

// Steps between a decision and its boundary. What the schedule will say is known long before; gradients and test losses
// shall be of as much of the interval as leaves time to make a training ready.
int64_t lead_of(const job::Elastic& elastic, int64_t interval) {
  const int64_t most = interval / 4;
  if (elastic.freeze == job::Freeze::Schedule && elastic.guard == 0) return most;
  constexpr int64_t kLeast = 6;
  return std::min(most, std::max(kLeast, interval / 20));
}

}  // namespace

void judge_freezing(double test_loss, FreezeState& state) {
  state.evaluation = {test_loss, state.before};
  state.best_loss = std::min(state.best_loss, test_loss);
}

FreezeDecision decide_freezing(const job::Elastic& elastic, int layers, const Decision& when,
                               const std::vector<double>& squares, FreezeState& state) {
  ++state.intervals;
  state.decided_at = when.at;
  const double allowed = state.best_loss * (1 + elastic.guard);
  // A loss that is none is more than any other.
  const bool worse = elastic.guard > 0 && state.evaluation && !(state.evaluation->loss <= allowed);
  FreezeDecision decision;
  if (worse) {
    const bool takes_back = state.evaluation->before < state.frozen;
    decision = {takes_back ? state.evaluation->before : state.frozen,
                fmt::format("test loss {:.4g} is {}more than {:.4g}, the best and its guard", state.evaluation->loss,
                            takes_back ? "" : "still ", allowed)};
  } else {
    decision = elastic.freeze == job::Freeze::Gradient ? by_gradient(elastic, layers, squares, state)
                                                       : by_schedule(elastic, layers, state);
  }
  if (decision.frozen == state.frozen) return decision;
  state.next = decision.frozen;
  state.boundary = when.boundary;
  return decision;
}

void apply_freezing(FreezeState& state) {
  if (state.next < 0) return;
  state.before = std::min(state.frozen, state.next);
  state.frozen = state.next;
  state.next = -1;
  state.boundary = -1;
}

std::vector<double> layer_squares(const graph::Graph& graph, const std::vector<float>& param_squares) {
  std::vector<double> squares(static_cast<size_t>(num_layers(graph)) + 1, 0.0);
  for (size_t param = 0; param < param_squares.size(); ++param) {
    squares[static_cast<size_t>(std::max(graph.params[param].depth, 1) - 1)] += param_squares[param];
  }
  return squares;
}

std::optional<Decision> next_decision(const job::Elastic& elastic, double steps_per_epoch, int64_t total_steps,
                                      int64_t from) {
  if (elastic.freeze == job::Freeze::Off) return std::nullopt;
  const int64_t interval = interval_steps(elastic.every, steps_per_epoch);
  const int64_t lead = lead_of(elastic, interval);
  const int64_t number = (from + lead + interval - 1) / interval;
  const int64_t boundary = std::max<int64_t>(1, number) * interval;
  if (boundary >= total_steps) return std::nullopt;
  return Decision{boundary - lead, boundary};
}

}  // namespace millrace::plan
