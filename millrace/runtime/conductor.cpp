#include "millrace/runtime/conductor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/job/lr_schedule.h"

namespace millrace::runtime {

using comm::Order;
using schedule::Pipeline;

namespace {

// How long workers go on after the run was asked to end, at least a step.
constexpr double kLeadSeconds = 0.25;
constexpr size_t kRecentLosses = 50, kEnoughLosses = 10;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Without a flush workers open buffers for steps to come: those must be granted, or one could wait for a grant that
// waits for what it does next.
int64_t least_lead(const RunFacts& facts) {
  const Pipeline& pipeline = facts.plan.pipeline;
  const int64_t align = updates_align(pipeline);
  if (pipeline.synchronous()) return 1;
  int64_t replicas = 1, slots = 1;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    replicas = std::max<int64_t>(replicas, pipeline.num_replicas(s));
    slots = std::max<int64_t>(slots, facts.shape.slots[s]);
  }
  return round_up(2 * slots * replicas, align) + align;
}

// The steps of a period; 0: none.
int64_t steps_of(const job::Period& period, double steps_per_epoch) {
  switch (period.unit) {
    case job::Period::Unit::Steps: return static_cast<int64_t>(period.count);
    case job::Period::Unit::Epochs: return std::max<int64_t>(1, std::llround(period.count * steps_per_epoch));
    case job::Period::Unit::Off:
    case job::Period::Unit::Minutes: return 0;
  }
  return 0;
}

}  // namespace

std::array<double, kValuesOfEvent> to_values(const Metrics& m) {
  const auto& [first, second, third, fourth] = m.figures;
  return {m.loss_sum, m.top1, m.top5, m.rows, first, second, third, fourth};
}

Metrics from_values(const std::array<double, kValuesOfEvent>& v) {
  return {v[0], v[1], v[2], v[3], {v[4], v[5], v[6], v[7]}};
}

int64_t updates_align(const Pipeline& pipeline) {
  int64_t all = 1;
  if (pipeline.synchronous() || pipeline.replicas == job::Replicas::Split) return all;
  for (const auto& workers : pipeline.stages) all = std::lcm(all, static_cast<int64_t>(workers.size()));
  return all;
}

int64_t longest_list(const Pipeline& pipeline) {
  constexpr int64_t kLongest = 1024;  // draining costs nothing, and the lists stay small
  return round_up(kLongest, updates_align(pipeline));
}

Conductor::Conductor(const RunFacts& facts, comm::Process& process, const Observer& observer, std::vector<int> savers)
    : facts_(facts),
      process_(process),
      observer_(observer),
      pipeline_(facts.plan.pipeline),
      align_(updates_align(pipeline_)),
      least_lead_(least_lead(facts)),
      keeper_(facts, observer, std::move(savers)) {}

Conductor::Boundary Conductor::next_boundary() const {
  const int64_t total = facts_.total_steps;
  const job::Eval& eval = facts_.job.eval;
  const job::Calendar& calendar = facts_.calendar;
  const auto epoch_steps = static_cast<double>(calendar.steps_per_epoch);
  const int64_t evaluate_every = facts_.test_data && eval.every_epochs > 0
                                     ? std::max<int64_t>(1, std::llround(eval.every_epochs * epoch_steps))
                                     : 0;
  const int64_t save_every = keeper_.keeps() ? steps_of(facts_.job.checkpoint.every, epoch_steps) : 0;
  int64_t last = pipeline_.synchronous() ? total : position_ + longest_list(pipeline_);
  const auto next_multiple = [](int64_t step, int64_t every) { return (step / every + 1) * every; };
  const auto next_in_epochs = [&](int64_t every) {
    return calendar.step_of_even(next_multiple(calendar.even(position_), every));
  };
  const bool saves_by_steps = facts_.job.checkpoint.every.unit == job::Period::Unit::Steps;
  const int64_t evaluates_at = evaluate_every > 0 ? next_in_epochs(evaluate_every) : total;
  const int64_t saves_at = save_every == 0  ? total
                           : saves_by_steps ? next_multiple(position_, save_every)
                                            : next_in_epochs(save_every);
  // A list ends with whole updates, which count from where it begins.
  for (const int64_t at : {evaluates_at, saves_at}) last = std::min(last, position_ + round_up(at - position_, align_));
  last = std::min(last, total);
  const std::optional<plan::Decision> decision = next_decision();
  if (decision) last = std::min(last, decision->at);
  if (const int64_t end = observer_.hands_over_at(); end >= 0) last = std::min(last, end);
  Boundary boundary{.step = last};
  boundary.decides = decision && decision->at == last;
  boundary.evaluates = facts_.test_data && (last == total || evaluates_at <= last);
  const bool saves_at_all = keeper_.keeps() && facts_.job.checkpoint.every.unit != job::Period::Unit::Off;
  boundary.saves = saves_at_all && (last == total || saves_at <= last);
  return boundary;
}

TrainingResult Conductor::run() {
  position_ = told_ = granted_ = facts_.first_step;
  samples_ = result_.samples = facts_.first_samples;
  result_.steps = facts_.first_step;
  latest_ = since_ = Clock::now();
  const std::optional<plan::FreezeState> freezing = observer_.freezing();
  undecided_ = std::max(facts_.first_step, freezing ? freezing->decided_at + 1 : 0);
  // A batch grows by a decision that holds from here on: it has been taken, however long before.
  const int64_t grown_at = facts_.calendar.since.step;
  if (grown_at > 0 && grown_at == facts_.first_step) undecided_ = std::max(undecided_, grown_at + 1);
  if (observer_.saves_first) save(observer_.saves_best_first);
  evaluation_due_ = facts_.evaluation_due;
  if (evaluation_due_ && !wants_to_end() && evaluate()) save(/*is_best=*/true);
  while (position_ < facts_.total_steps) {
    const Boundary boundary = next_boundary();
    train_to(boundary.step);
    if (diverged_) {
      if (roll_back()) continue;
      break;
    }
    const bool reached = position_ == boundary.step;
    evaluation_due_ |= reached && boundary.evaluates;
    // Whoever asks a run to end may not wait for an evaluation: the one that goes on makes it.
    const bool in_haste = result_.stopped && position_ < facts_.total_steps;
    const bool is_best = evaluation_due_ && !in_haste && evaluate();
    if (reached && boundary.decides) decide();
    const bool saves = (reached && boundary.saves) || keeper_.due_by_time() || result_.stopped;
    if (observer_.hands_over_at() == position_ && !result_.stopped && observer_.hands_over()) {
      result_.handed_over = true;
      result_.save_is_due = saves || is_best;
      result_.best_is_due = is_best;
      break;
    }
    if (saves || is_best) save(is_best);
    if (result_.stopped) break;
  }
  if (position_ == facts_.total_steps) result_.stopped = false;  // it was at its end
  process_.order({Order::Kind::End, position_, 0, 0});
  await_save();
  result_.saved_step = keeper_.newest();
  result_.failed_saves = keeper_.failures();
  return result_;
}

void Conductor::train_to(int64_t end) {
  process_.order({Order::Kind::Train, position_, end, 0});
  granted_ = position_;
  bool cut = false;
  while (told_ < end) {
    if (!cut && (diverged_ || wants_to_end() || keeper_.due_by_time())) {
      cut = true;
      end = granted_;
      // At once: workers that do not know where their list ends would wait for a grant ahead of what is left to do.
      process_.order({Order::Kind::Pause, end, 0, 0});
      continue;
    }
    if (!cut) grant(end);
    take_step(told_);
    ++told_;
  }
  position_ = end;
}

bool Conductor::wants_to_end() {
  result_.stopped |= observer_.wants_to_end();
  return result_.stopped;
}

void Conductor::grant(int64_t end) {
  int64_t lead = least_lead_;
  if (mean_step_s_ > 0) lead = std::max(lead, static_cast<int64_t>(std::ceil(kLeadSeconds / mean_step_s_)));
  const int64_t target = std::min(end, position_ + round_up(told_ + lead - position_, align_));
  // In a few pieces: a grant goes to every process.
  if (target <= granted_ || (target < end && target - granted_ < lead / 4)) return;
  granted_ = target;
  process_.grant(granted_);
}

void Conductor::take_step(int64_t step) {
  const int replicas = pipeline_.num_replicas(facts_.loss_stage());
  const bool in_turn = !pipeline_.synchronous() && pipeline_.replicas == job::Replicas::RoundRobin;
  const Metrics metrics = await(Kind::Step, step, in_turn ? 1 : replicas);
  const double seconds = std::chrono::duration<double>(latest_ - since_).count();
  since_ = latest_;
  mean_step_s_ = mean_step_s_ == 0 ? seconds : 0.9 * mean_step_s_ + 0.1 * seconds;
  if (diverged_) return;  // what was under way when it was found out
  const int64_t samples = static_cast<int64_t>(metrics.rows) / facts_.train_data->label_elements();
  samples_ += samples;
  result_.steps = step + 1;
  result_.samples = samples_;
  ++result_.own_steps;
  result_.own_samples += samples;
  result_.train_s += seconds;
  if (facts_.calendar.index_in_epoch(step) == 0) stretch_ = {};
  stretch_ += metrics;
  result_.last = stretch_;
  observer_.on_step(
      {step, facts_.total_steps, facts_.calendar.epoch_at(step + 1), seconds, facts_.rate_of(step), samples, metrics});
  if (!observer_.stop_if_diverged || !has_diverged(metrics.loss())) return;
  diverged_ = true;
  result_.last = metrics;
}

bool Conductor::has_diverged(double loss) {
  if (!std::isfinite(loss)) return true;
  const double spike = facts_.job.divergence.spike;
  if (spike > 0 && recent_losses_.size() >= kEnoughLosses) {
    const double mean =
        std::accumulate(recent_losses_.begin(), recent_losses_.end(), 0.0) / static_cast<double>(recent_losses_.size());
    if (loss > spike * mean) return true;
  }
  recent_losses_.push_back(loss);
  if (recent_losses_.size() > kRecentLosses) recent_losses_.pop_front();
  return false;
}

// The state of the newest checkpoint, and on with the data behind what was met since: true if that could be done.
bool Conductor::roll_back() {
  const int64_t lost = result_.steps - 1;
  const double loss = result_.last.loss();
  const auto give_up = [&](const std::string& why) {
    if (!why.empty()) observer_.on_note(fmt::format("step {}: loss {}; {}", lost, loss, why));
    result_.diverged = true;
    return false;
  };
  if (facts_.job.on_divergence != job::OnDivergence::Rollback) return give_up("");
  if (static_cast<int>(result_.rollbacks.size()) >= facts_.job.divergence.rollbacks) {
    return give_up(fmt::format("divergence.rollbacks allows no more than {}", facts_.job.divergence.rollbacks));
  }
  await_save();
  // Weights are known to be good once a loss was computed with them.
  const int delay = *std::max_element(pipeline_.versions.begin(), pipeline_.versions.end()) - 1;
  const std::optional<state::Manifest> good = keeper_.newest_before(lost - delay);
  if (!good) return give_up("there is no checkpoint to go back to");
  const int64_t to = good->step;
  observer_.on_note(
      fmt::format("step {}: loss {}; back to the state of step {}, on with step {}", lost, loss, to, lost + 1));
  result_.rollbacks.push_back({lost, loss, to});
  process_.order({Order::Kind::Load, position_, lost + 1, to});
  position_ = told_ = granted_ = lost + 1;
  samples_ = good->samples;
  recent_losses_.clear();
  diverged_ = false;
  since_ = latest_ = Clock::now();
  return true;
}

bool Conductor::evaluate() {
  process_.order({Order::Kind::Evaluate, position_, 0, 0});
  result_.evaluation = await(Kind::Evaluation, position_, pipeline_.num_replicas(facts_.loss_stage()));
  since_ = latest_;
  evaluation_due_ = false;
  observer_.on_evaluation(facts_.calendar.epoch_at(position_), *result_.evaluation);
  return keeper_.take_evaluation(*result_.evaluation);
}

std::optional<plan::Decision> Conductor::next_decision() const {
  const job::Calendar& calendar = facts_.calendar;
  auto decision = plan::next_decision(facts_.job.elastic, static_cast<double>(calendar.steps_per_epoch),
                                      calendar.even(facts_.total_steps), calendar.even(undecided_));
  if (decision) decision = {calendar.step_of_even(decision->at), calendar.step_of_even(decision->boundary)};
  return decision;
}

// What is known of the gradients since the last decision goes to whoever decides.
void Conductor::decide() {
  IntervalReport report;
  report.decision = *next_decision();
  undecided_ = position_ + 1;
  if (facts_.job.elastic.freeze == job::Freeze::Gradient) {
    process_.order({Order::Kind::Watch, position_, 0, 0});
    report.squares = await_squares();
  }
  observer_.on_interval(report);
  since_ = latest_ = Clock::now();
}

void Conductor::save(bool is_best) {
  if (result_.stopped || position_ == facts_.total_steps) await_save();  // the last one is not left out
  const bool begins = keeper_.begin(position_, samples_, is_best, evaluation_due_);
  if (begins) process_.order({Order::Kind::Save, position_, 0, 0});
}

void Conductor::await_save() {
  while (keeper_.is_saving()) take_events(std::chrono::milliseconds(20));
}

void Conductor::take_events(std::chrono::milliseconds wait) {
  keeper_.look_after();
  const auto event = process_.next_event(wait);
  if (!event) return;
  if (event->kind == Kind::Saved) return keeper_.take(*event);
  gathered_[{event->kind, event->number}][event->part] = from_values(event->values);
  told_at_[{event->kind, event->number}] = event->at;
}

// Of each layer; they come eight at a time.
std::vector<double> Conductor::await_squares() {
  const size_t count = static_cast<size_t>(facts_.layers) + 1;
  const std::pair key(Kind::Watched, position_);
  const size_t parts = (count + kValuesOfEvent - 1) / kValuesOfEvent;
  while (gathered_[key].size() < parts) take_events(std::chrono::milliseconds(200));
  std::vector<double> squares;
  for (const auto& [part, values] : gathered_[key]) {
    for (const double value : to_values(values)) squares.push_back(value);
  }
  squares.resize(count);
  gathered_.erase(key);
  told_at_.erase(key);
  return squares;
}

Metrics Conductor::await(Kind kind, int64_t number, int parts) {
  const std::pair key(kind, number);
  auto& wanted = gathered_[key];
  while (static_cast<int>(wanted.size()) < parts) take_events(std::chrono::milliseconds(200));
  Metrics total;
  for (const auto& [part, metrics] : wanted) total += metrics;
  gathered_.erase(key);
  latest_ = told_at_[key];
  told_at_.erase(key);
  return total;
}

}  // namespace millrace::runtime
