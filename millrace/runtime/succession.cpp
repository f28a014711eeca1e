#include "millrace/runtime/succession.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/median.h"

namespace millrace::runtime {
namespace {

constexpr size_t kStepsForGain = 20;  // after which the gain of a transition is told
constexpr double kSameEpoch = 1e-9;   // epochs are counted in fractions

// By all workers: each reads samples of its own.
void take_cache_use(const std::vector<WorkerRecord>& records, Stretch& stretch) {
  int64_t fetched = 0, computed = 0;
  for (const WorkerRecord& record : records) {
    fetched += record.rows_fetched;
    computed += record.rows_computed;
    if (stretch.cache_verdict.empty()) stretch.cache_verdict = record.cache_verdict;
  }
  if (fetched > 0) stretch.cached = static_cast<double>(fetched) / static_cast<double>(fetched + computed);
}

}  // namespace

Succession::Succession(std::unique_ptr<Training> first, const job::Job& job, comm::Process& process,
                       const MachineLimit& limit, Planner planner, const plan::FreezeState& freezing,
                       std::shared_ptr<PrefixCaches> caches)
    : process_(process), limit_(limit), planner_(std::move(planner)), caches_(std::move(caches)), freezing_(freezing) {
  now_ = {job, std::move(first)};
  next_step_ = now_.training->first_step();
  running_ = &process_;
  if (job.elastic.freeze == job::Freeze::Off) return;
  beside_ = process_.beside();
  idle_ = beside_.get();
}

Succession::~Succession() {
  if (next_plan_.valid()) next_plan_.wait();
}

TrainingResult Succession::run(const Observer& observer) {
  const bool leads = process_.rank() == 0;
  observer_ = observer;
  begin_next();
  observer_.on_interval = [this](const IntervalReport& report) { decide(report); };
  observer_.hands_over_at = [this] { return freezing_.boundary; };
  observer_.hands_over = [this] { return can_hand_over(); };
  observer_.freezing = [this] { return std::optional(freezing_); };
  observer_.on_step = [this, on_step = observer.on_step](const StepReport& step) {
    take_step(step);
    on_step(step);
  };
  observer_.on_evaluation = [this, on_evaluation = observer.on_evaluation](double epoch, const Metrics& metrics) {
    judge_freezing(metrics.loss(), freezing_);
    on_evaluation(epoch, metrics);
    busy_until_ = std::chrono::steady_clock::now();
  };
  // A decision that was taken before the run was interrupted.
  if (leads && freezing_.next >= 0) {
    Transition& pending = transitions_.emplace_back();
    pending.why = "decided before the run was interrupted";
    prepare();
  }
  for (;;) {
    begin_stretch();
    const TrainingResult result = now_.training->run(observer_);
    if (leads) take(result);
    if (running_->broadcast(result.handed_over ? "goes on" : "").empty()) break;
    hand_over(result);
    begin_next();
  }
  next_.reset();
  if (leads && transitions_.size() > stretches_.size()) transitions_.pop_back();  // decided, and never done
  end_stretch();
  gather_records();
  return total_;
}

void Succession::take_step(const StepReport& step) {
  step_s_.push_back(step.seconds);
  next_step_ = step.step + 1;
  if (fills_cache() && step.epoch <= filled_at_ + kSameEpoch) filling_steps_ = step_s_.size();
  busy_until_ = std::chrono::steady_clock::now();
  if (stretches_.empty()) return;
  const Transition& transition = transitions_[stretches_.size() - 1];
  const std::span<const double> last = std::span(step_s_).last(std::min(kStepsForGain, step_s_.size()));
  if (step_s_.size() == kStepsForGain && filling_steps_ == step_s_.size()) {
    tell_gain(next_step_, last, transition.predicted_filling_s, "in the first epoch ");
  } else if (step_s_.size() == filling_steps_ + kStepsForGain) {
    tell_gain(next_step_, last, transition.predicted_step_s, filling_steps_ > 0 ? "after the first epoch " : "");
  }
}

void Succession::begin_stretch() {
  begin_ns_ = Timeline::now_ns();
  next_step_ = now_.training->first_step();
  // Of an epoch that has begun the first samples come in the next one.
  filled_at_ = std::ceil(now_.training->epoch_at(next_step_) - kSameEpoch) + 1;
}

void Succession::begin_next() {
  if (!idle_) return;
  const bool uses_devices = now_.job.device == job::Device::Cuda;
  next_ = std::make_unique<NextTraining>(*idle_, limit_, caches_, former_, uses_devices);
}

// Of the training that has ended.
void Succession::end_stretch() {
  Stretch& stretch = stretches_.emplace_back();
  const Training& training = *now_.training;
  stretch.first_step = training.first_step();
  stretch.steps = static_cast<int64_t>(step_s_.size());
  stretch.frozen = freezing_.frozen;
  stretch.stages = training.plan().pipeline.num_stages();
  stretch.workers = training.plan().pipeline.num_workers;
  stretch.replicas = training.plan().pipeline.num_replicas(0);
  stretch.batch = now_.job.batch;
  stretch.begin_ns = begin_ns_;
  stretch.end_ns = std::max(begin_ns_, Timeline::at_ns(busy_until_));
  // The first step has what is left of the pause in it.
  const size_t first = step_s_.size() > 1 ? 1 : 0;
  const std::span<double> steps = std::span(step_s_).subspan(first);
  const size_t filling = filling_steps_ - std::min(filling_steps_, first);
  stretch.filling_step_s = median(steps.first(filling));
  stretch.filled_step_s = filling_steps_ > 0 ? median(steps.subspan(filling)) : 0;
  stretch.step_s = median(steps);
  step_s_.clear();
  filling_steps_ = 0;
  own_records_.add(training.own_records());
  if (caches_) settle_cache();
}

// By the worker that lost most: others wait for it.
void Succession::settle_cache() {
  std::optional<double> lost_s;
  double train_s = 0;
  for (size_t i = 0; i < now_.training->num_workers(); ++i) {
    const Worker& worker = now_.training->worker(i);
    const std::optional<double> own_s = worker.cache_lost_s();
    if (own_s) lost_s = std::max(lost_s.value_or(*own_s), *own_s);
    train_s = std::max(train_s, worker.train_s());
  }
  caches_->settle(lost_s, train_s);
}

void Succession::gather_records() {
  if (process_.size() == 1) {
    records_ = own_records_.trainings();
  } else {
    const std::vector<std::string> all = process_.gather(to_text(own_records_.trainings()));
    if (process_.rank() == 0) records_ = merge_records(all);
  }
  for (size_t i = 0; i < records_.size(); ++i) take_cache_use(records_[i], stretches_[i]);
}

void Succession::decide(const IntervalReport& report) {
  const plan::FreezeDecision decision =
      decide_freezing(now_.job.elastic, now_.training->layers(), report.decision, report.squares, freezing_);
  if (freezing_.next < 0) {
    observer_.on_note(fmt::format("step {}: {} of {} layers stay frozen: {}", report.decision.at, freezing_.frozen,
                                  now_.training->layers(), decision.why));
    return;
  }
  Transition& transition = transitions_.emplace_back();
  transition.why = decision.why;
  transition.squares = report.squares;
  prepare();
}

// Layers whose output the cache will have of every sample when the next training begins, and which it can use.
int Succession::kept_at_boundary() const {
  const int64_t trained = (freezing_.boundary - now_.training->first_step()) * now_.job.batch;
  if (!caches_ || trained < now_.training->train_samples()) return 0;
  const int kept = caches_->kept_layers((freezing_.boundary - next_step_) * now_.job.batch);
  return kept < freezing_.next ? kept : 0;  // what more layers made is of weights that will change
}

// The next training is planned and made while this one goes on.
void Succession::prepare() {
  const int kept = kept_at_boundary();
  transitions_.back().kept = kept;
  next_plan_ = std::async(std::launch::async, [this, now = now_.job, frozen = freezing_.next, kept] {
                 return planner_(now, frozen, kept);
               }).share();
  next_->begin(next_plan_, freezing_.boundary, caches_ ? caches_->next(freezing_.next, freezing_.boundary) : nullptr);
}

// At the boundary: whether there is a next training. Where there is none, this one goes on as it is.
bool Succession::can_hand_over() {
  std::string why;
  try {
    const auto began = std::chrono::steady_clock::now();
    next_->await();
    transitions_.back().waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return true;
  } catch (const std::invalid_argument& error) {
    why = error.what();
  }
  observer_.on_note(fmt::format("layers 1 to {} cannot be frozen: {}", freezing_.next, why));
  freezing_.next = -1;
  freezing_.boundary = -1;
  transitions_.pop_back();
  return false;
}

void Succession::hand_over(const TrainingResult& result) {
  const bool leads = process_.rank() == 0;
  end_stretch();
  NextTraining::Made next;
  int64_t moved_bytes = 0;
  if (next_->is_beside()) {
    next = next_->take();
    moved_bytes = next.training->take_over(*now_.training);
  } else {
    state::State own = now_.training->own_state();
    if (leads) own.since = now_.training->since_for(next_plan_.get().job.batch);
    now_.training.reset();
    next = next_->take();
    moved_bytes = next.training->take_over(std::move(own));
  }
  if (leads) transitions_.back().moved_bytes = moved_bytes;
  // To give memory back takes time, and nobody waits for it.
  former_ = std::async(std::launch::async, [old = std::shared_ptr<Training>(std::move(now_.training))]() mutable {
              old.reset();
            }).share();
  now_ = std::move(next);
  std::swap(running_, idle_);
  observer_.saves_first = result.save_is_due;
  observer_.saves_best_first = result.best_is_due;
  if (!leads) return;
  apply_freezing(freezing_);
  Transition& transition = transitions_.back();
  transition.step = result.steps;
  const NextPlan& plan = next_plan_.get();
  transition.plan = plan.words;
  transition.predicted_step_s = plan.predicted_step_s;
  transition.predicted_filling_s = plan.predicted_filling_s;
  transition.predicted_before_s = plan.predicted_before_s;
  transition.pause_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - busy_until_).count();
  std::string words = fmt::format("step {}: layers 1 to {} of {} stand still ({}); ", transition.step, freezing_.frozen,
                                  now_.training->layers(), transition.why);
  if (!transition.plan.empty()) words += transition.plan + "; ";
  words += fmt::format("paused {:.0f} ms", transition.pause_s * 1e3);
  observer_.on_note(words + expected());
}

// Of the training that begins.
std::string Succession::expected() const {
  const Transition& t = transitions_.back();
  if (t.predicted_step_s <= 0) return {};
  std::string words = fmt::format("; a step should now take {:.1f} ms", t.predicted_step_s * 1e3);
  if (t.predicted_filling_s > 0) {
    const std::string again = t.kept + 1 == freezing_.frozen
                                  ? fmt::format("layer {} is", freezing_.frozen)
                                  : fmt::format("layers {} to {} are", t.kept + 1, freezing_.frozen);
    words = fmt::format(
        "; a step should now take {:.1f} ms in the first epoch, in which {} computed once more, and {:.1f} ms after it",
        t.predicted_filling_s * 1e3, again, t.predicted_step_s * 1e3);
  }
  if (t.predicted_before_s > 1.01 * t.predicted_step_s) {
    words += fmt::format(", {:.1f} ms with the plan before", t.predicted_before_s * 1e3);
  }
  return words;
}

// Once it is known what a step takes after a transition: what came of it.
void Succession::tell_gain(int64_t step, std::span<const double> step_s, double predicted_s, const std::string& when) {
  std::vector<double> seconds(step_s.begin(), step_s.end());
  const double typical_s = median(seconds), before = stretches_.back().samples_per_s();
  if (!(before > 0 && typical_s > 0)) return;
  const double now = static_cast<double>(now_.job.batch) / typical_s;
  const std::string predicted = predicted_s > 0 ? fmt::format(" ({:.1f} predicted)", predicted_s * 1e3) : "";
  observer_.on_note(fmt::format(
      "step {}: a step {}takes {:.1f} ms{}: {:.4g} samples/s, {:.4g} before layers 1 to {} stood still: {:.2f}x", step,
      when, typical_s * 1e3, predicted, now, before, freezing_.frozen, now / before));
}

void Succession::take(const TrainingResult& result) {
  TrainingResult sum = result;
  sum.own_steps += total_.own_steps;
  sum.own_samples += total_.own_samples;
  sum.train_s += total_.train_s;
  sum.data_wait_s += total_.data_wait_s;
  sum.save_wait_s += total_.save_wait_s;
  sum.failed_saves.insert(sum.failed_saves.begin(), total_.failed_saves.begin(), total_.failed_saves.end());
  if (!sum.evaluation) sum.evaluation = total_.evaluation;
  total_ = std::move(sum);
}

}  // namespace millrace::runtime
