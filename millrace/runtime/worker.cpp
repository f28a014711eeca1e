#include "millrace/runtime/worker.h"

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/comm/process.h"
#include "millrace/data/bad_sample.h"
#include "millrace/job/lr_schedule.h"

namespace millrace::runtime {

using schedule::Kind;
using schedule::Pipeline;

const char* name_of(Activity activity) {
  switch (activity) {
    case Activity::Forward: return "F";
    case Activity::Recompute: return "R";
    case Activity::InputGrad: return "I";
    case Activity::WeightGrad: return "W";
    case Activity::Send: return "send";
    case Activity::Receive: return "receive";
    case Activity::Reduce: return "reduce";
    case Activity::Step: return "step";
    case Activity::Data: return "data";
    case Activity::Evaluate: return "evaluate";
    case Activity::kCount: break;
  }
  return "?";
}

int64_t RunFacts::rows_of_step(int64_t step) const {
  return std::min(job.batch, train_data->size() - calendar.index_in_epoch(step) * job.batch);
}

double RunFacts::rate_of(int64_t step) const {
  return job::learning_rate(job.optimizer, job.schedule, calendar.even(step),
                            static_cast<double>(calendar.steps_per_epoch), calendar.even(total_steps));
}

void Worker::load(const state::State& state) {
  if (copying_) await_copy();
  for (Stage& stage : stages_) {
    stage.session->load(state);
    open_data(stage, state.step);
  }
}

void Worker::load_from(const std::vector<const Session*>& before, const state::State& position,
                       const state::Names& come) {
  for (Stage& stage : stages_) {
    stage.session->load_from(before, position, come);
    open_data(stage, position.step);
  }
}

bool Worker::has_param(const std::string& name) const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [&](const Stage& stage) { return stage.session->has_param(name); });
}

void Worker::store(state::State& state, Replicas which) const {
  for (const Stage& stage : stages_) {
    if (stage.replica == 0 || which == Replicas::All) stage.session->store(state);
  }
}

std::string Worker::doing() const {
  const Bound* action = current_.load(std::memory_order_relaxed);
  if (!action) return "nothing yet";
  static constexpr const char* kNames[] = {"forward",         "backward",          "input gradient",
                                           "weight gradient", "opening a receive", "sending",
                                           "receiving",       "summing gradients", "updating weights"};
  const Pipeline& pipeline = facts_.plan.pipeline;
  const bool is_update = action->kind == Kind::Reduce || action->kind == Kind::Step;
  const int64_t first = current_step_.load(std::memory_order_relaxed) *
                        (is_update || !pipeline.synchronous() ? 1 : pipeline.microbatches);
  return fmt::format("stage {}, {}, {} {}", stages_[action->stage].stage, kNames[static_cast<int>(action->kind)],
                     is_update ? "update" : "micro-batch", first + action->microbatch);
}

Worker::List& Worker::bind(const schedule::Schedule& schedule) {
  for (List& list : lists_) {
    if (list.schedule == &schedule) return list;
  }
  List list;
  list.schedule = &schedule;
  for (const schedule::Action& action : schedule.workers[index_]) {
    Bound bound;
    bound.kind = action.kind;
    bound.direction = action.direction;
    bound.microbatch = action.microbatch;
    bound.version = action.version;
    bound.part = action.part;
    bound.needs = last_microbatch(schedule, action);
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].stage == action.stage) bound.stage = static_cast<int>(s);
    }
    if (is_message(action.kind)) {
      const auto& ports = stages_[bound.stage].ports;
      for (size_t p = 0; p < ports.size(); ++p) {
        if (ports[p].edge == action.edge && ports[p].peer == action.peer) bound.port = static_cast<int>(p);
      }
      if (bound.port < 0) fail_run("worker {} has no port for edge {} to {}", index_, action.edge, action.peer);
    }
    list.actions.push_back(bound);
  }
  if (schedule.trains && !facts_.job.parallel.static_scheduling) list.units = units_of(list.actions);
  return lists_.emplace_back(std::move(list));
}

int64_t Worker::step_of(int microbatch) const {
  const Pipeline& pipeline = facts_.plan.pipeline;
  return first_step_ + (pipeline.synchronous() ? microbatch / pipeline.microbatches : microbatch);
}

int64_t Worker::number_of(int microbatch) const {
  if (evaluating_) return microbatch;
  const Pipeline& pipeline = facts_.plan.pipeline;
  return first_step_ * (pipeline.synchronous() ? pipeline.microbatches : 1) + microbatch;
}

int64_t Worker::first_row(const Stage& stage, int microbatch) const {
  const Pipeline& pipeline = facts_.plan.pipeline;
  if (evaluating_) return microbatch * pipeline.rows + stage.rows.begin;
  return (pipeline.synchronous() ? microbatch % pipeline.microbatches : 0) * pipeline.rows + stage.rows.begin;
}

int64_t Worker::rows_of(const Stage& stage, int microbatch) const {
  const int64_t samples = evaluating_ ? facts_.test_data->size() : facts_.rows_of_step(step_of(microbatch));
  return std::clamp<int64_t>(samples - first_row(stage, microbatch), 0, stage.rows.size());
}

int Worker::slot_of(const Stage& stage, int microbatch) const {
  return local_index(facts_.plan.pipeline, stage.stage, microbatch) % stage.session->options().copies.slots;
}

int Worker::gradient_slot_of(const Stage& stage, int microbatch) const {
  return local_index(facts_.plan.pipeline, stage.stage, microbatch) % stage.session->options().copies.gradient_slots;
}

Session::Place Worker::place_of(const Stage& stage, const Bound& action) const {
  const int64_t update = stage.first_update + update_of(facts_.plan.pipeline, stage.stage, action.microbatch);
  // At the start of training there is nothing older than version 0.
  return {slot_of(stage, action.microbatch), gradient_slot_of(stage, action.microbatch),
          std::max<int64_t>(stage.first_update + action.version, 0), update};
}

backend::StepContext Worker::context_of(const Stage& stage, int microbatch, int64_t update) const {
  const Pipeline& pipeline = facts_.plan.pipeline;
  const bool in_turn = !pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin;
  const job::Job& job = facts_.job;
  backend::StepContext context;
  context.seed = job.seed;
  context.step = step_of(microbatch);
  context.first_row = first_row(stage, microbatch);
  context.rows = rows_of(stage, microbatch);
  context.inverse_samples = 1.0 / static_cast<double>(facts_.rows_of_step(context.step));
  // Where replicas take minibatches in turn, an update of a stage stands for as many of them as it has replicas, and
  // its rate follows (PipeDream's rule, by the replicas of the first stage).
  const int replicas = in_turn ? pipeline.num_replicas(stage.stage) : 1;
  const double scale = in_turn ? static_cast<double>(replicas) / pipeline.num_replicas(0) : 1.0;
  const int64_t rate_step = first_step_ + (update - stage.first_update) * replicas;
  context.learning_rate = static_cast<float>(scale * facts_.rate_of(rate_step));
  return context;
}

bool Worker::may_run(const Bound& action) {
  while (action.needs >= limit_ && !limit_is_end_) {
    const comm::OrderBook::Limit limit = (*ask_limit_)(first_step_ + limit_);
    limit_ = static_cast<int>(limit.step - first_step_);
    limit_is_end_ = limit.is_end;
  }
  return action.needs < limit_;
}

void Worker::train(const schedule::Schedule& schedule, int64_t first_step, const WorkerEvents& events,
                   const Limit& limit) {
  List& list = bind(schedule);
  first_step_ = first_step;
  ask_limit_ = &limit;
  limit_ = limit ? 0 : schedule.microbatches;
  limit_is_end_ = !limit;
  current_step_.store(first_step, std::memory_order_relaxed);
  evaluating_ = false;
  events_ = &events;
  for (Stage& stage : stages_) {
    stage.first_update = stage.session->updates();
    if (first_step == facts_.time_nodes_from) stage.session->time_nodes(true);
  }
  const int64_t begin = Timeline::now_ns();
  if (flies()) take_off(begin);
  if (facts_.job.parallel.static_scheduling) {
    for (const Bound& action : list.actions) {
      if (may_run(action)) run(action);
    }
  } else {
    run_as_ready(list);
  }
  finish_messages();
  for (Stage& stage : stages_) bring_next(stage);
  if (flies()) fly();
  train_s_ += static_cast<double>(Timeline::now_ns() - begin) * 1e-9;
}

WorkerRecord Worker::record() const {
  WorkerRecord record;
  record.worker = index_;
  record.device = fmt::format("{}:{}", facts_.plan.devices[index_].node, facts_.plan.devices[index_].device);
  record.host = comm::host_name();
  for (const Stage& stage : stages_) record.stages.push_back(stage.stage);
  record.planned_bytes = static_cast<int64_t>(planned_bytes());
  record.train_s = train_s_;
  record.busy_s = timeline_.busy_s();
  record.waited_s = timeline_.exposed_comm_s();
  record.exposed_s = exposed_s_ + timeline_.seconds(Activity::Reduce);
  record.data_s = timeline_.seconds(Activity::Data);
  record.transfer_s = endpoint_.transfer_s() - evaluation_transfer_s_;
  record.bytes_sent = endpoint_.bytes_sent();
  for (size_t i = 0; i < evaluation_bytes_.size(); ++i) record.bytes_sent[i] -= evaluation_bytes_[i];
  record.rows_fetched = rows_fetched();
  record.rows_computed = rows_computed();
  record.cache_verdict = cache_verdict();
  record.spans = timeline_.spans();
  record.left_out = timeline_.left_out();
  return record;
}

void Worker::run(const Bound& action) {
  Stage& stage = stages_[action.stage];
  current_.store(&action, std::memory_order_relaxed);
  if (copying_ && action.kind != Kind::Forward && !is_message(action.kind)) await_copy();
  try {
    switch (action.kind) {
      case Kind::Forward: return forward(stage, action);
      case Kind::Backward: return backward(stage, action);
      case Kind::Post:
      case Kind::Send:
      case Kind::Receive: return message(stage, action);
      case Kind::Reduce: return reduce(stage, action);
      case Kind::Step: return step(stage, action);
      case Kind::InputGrad:
      case Kind::WeightGrad: fail_run("input and weight gradients cannot be run apart yet");
    }
  } catch (const comm::Aborted&) {
    throw;
  } catch (const data::BadSample&) {
    throw;  // it names the file, which is what is wrong
  } catch (const std::exception& error) {
    const job::DeviceId& device = facts_.plan.devices[index_];
    fail_run("worker {} ({}:{} on {}), {}: {}", index_, device.node, device.device, comm::host_name(), doing(),
             error.what());
  }
}

}  // namespace millrace::runtime
