#include "millrace/runtime/worker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/comm/process.h"
#include "millrace/data/bad_sample.h"
#include "millrace/job/lr_schedule.h"

namespace millrace::runtime {

using schedule::Direction;
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

void Worker::load_from(const std::vector<const Session*>& before, int64_t step) {
  for (Stage& stage : stages_) {
    stage.session->load_from(before);
    open_data(stage, step);
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

double Worker::data_wait_s() const {
  double seconds = backend_.brought_late_s();
  for (const Stage& stage : stages_) seconds += stage.loader ? stage.loader->waited_s() : 0;
  return seconds;
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

template <typename Body>
void Worker::timed(Activity activity, const Stage& stage, int64_t microbatch, Body&& body) {
  backend_.begin_range(name_of(activity));
  const bool later = is_compute(activity) && flies();
  const int64_t begin = later ? mark() : Timeline::now_ns();
  body();
  keep({begin, later ? mark() : Timeline::now_ns(), microbatch, stage.stage, activity}, later);
  backend_.end_range();
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

void Worker::await_departures(Stage& stage, Direction direction, int slot) {
  for (Port& port : stage.ports) {
    // Activations leave through outgoing ports, gradients through entering ones.
    if (port.entering != (direction == Direction::Gradient)) continue;
    for (Port::Piece& piece : port.pieces) {
      auto& tickets = direction == Direction::Activation ? piece.activation_ticket : piece.gradient_ticket;
      if (!tickets.empty()) endpoint_.wait(tickets[slot]);
    }
  }
}

void Worker::finish_messages() {
  for (Stage& stage : stages_) {
    for (Port& port : stage.ports) {
      for (Port::Piece& piece : port.pieces) {
        for (auto& ticket : piece.activation_ticket) endpoint_.wait(ticket);
        for (auto& ticket : piece.gradient_ticket) endpoint_.wait(ticket);
      }
    }
  }
}

// Of the rows that a stage loads of a batch, a micro-batch has those of one part.
int Worker::part_of(const Stage& stage, int microbatch) const {
  const Pipeline& pipeline = facts_.plan.pipeline;
  if (evaluating_ || !pipeline.synchronous()) return 0;
  return local_index(pipeline, stage.stage, microbatch % pipeline.microbatches);
}

void Worker::take_data(Stage& stage, int microbatch, int slot) {
  data::Loader* loader = evaluating_ ? stage.test_loader.get() : stage.loader.get();
  if (!loader) return;
  // A batch has all micro-batches of a step; in an evaluation it is one.
  const int64_t number = evaluating_ ? microbatch : step_of(microbatch);
  const bool shortened = stage.prefix && !evaluating_;
  if (number != stage.batch_number) {
    const double waited_s = loader->waited_s();
    backend_.await_brought();  // the memory of the batch before is given up
    stage.batch = &loader->next();
    stage.batch_number = number;
    const double late_s = backend_.brought_late_s() - std::exchange(stage.brought_late_s, backend_.brought_late_s());
    if (shortened) stage.prefix->take(*stage.batch, loader->waited_s() - waited_s + late_s);
  }
  stage.part = part_of(stage, microbatch);
  const auto row = static_cast<size_t>(stage.part * stage.rows.size());
  const bool is_known = shortened && stage.batch->shortcut > 0;
  if (is_known) stage.prefix->put(*stage.batch, row, slot);
  const bool has_features = !is_known || stage.prefix->shortcut().with_features;
  stage.session->put_input(slot, has_features ? stage.batch->features_from(row) : nullptr,
                           stage.batch->labels_from(row));
  stage.wants_next = !evaluating_ && stage.landing.memory;
}

// While a micro-batch is computed, what the next one reads comes to the device, if it is loaded already.
void Worker::bring_next(Stage& stage) {
  if (!stage.wants_next) return;
  const bool same = stage.part + 1 < stage.parts;
  const data::Batch* batch = same ? stage.batch : stage.loader->peek();
  if (!batch) return;
  stage.wants_next = false;
  const auto rows = static_cast<size_t>(stage.rows.size());
  const size_t row = same ? static_cast<size_t>(stage.part + 1) * rows : 0;
  const bool is_known = stage.prefix && batch->shortcut > 0;
  const Landing& landing = stage.landing;
  if (is_known) {
    backend_.bring(batch->shortened.data() + row * batch->shortened_bytes, rows * batch->shortened_bytes,
                   landing.memory + landing.shortened);
  }
  if (const std::byte* features = batch->features_from(row);
      features && (!is_known || stage.prefix->shortcut().with_features)) {
    backend_.bring(features, rows * batch->feature_bytes, landing.memory + landing.features);
  }
  if (const int32_t* labels = batch->labels_from(row)) {
    backend_.bring(labels, rows * batch->label_elements * sizeof(int32_t), landing.memory + landing.labels);
  }
}

// Of the micro-batch's rows, those that are samples come first.
std::span<const int64_t> Worker::samples_of(const Stage& stage, int microbatch) const {
  return stage.batch->samples.subspan(static_cast<size_t>(part_of(stage, microbatch) * stage.rows.size()),
                                      static_cast<size_t>(rows_of(stage, microbatch)));
}

int64_t Worker::rows_fetched() const {
  int64_t rows = 0;
  for (const Stage& stage : stages_) rows += stage.prefix ? stage.prefix->rows_fetched() : 0;
  return rows;
}

int64_t Worker::rows_computed() const {
  int64_t rows = 0;
  for (const Stage& stage : stages_) rows += stage.prefix ? stage.prefix->rows_computed() : 0;
  return rows;
}

std::optional<double> Worker::cache_lost_s() const {
  for (const Stage& stage : stages_) {
    if (stage.prefix) return stage.prefix->lost_s();
  }
  return std::nullopt;
}

std::string Worker::cache_verdict() const {
  for (const Stage& stage : stages_) {
    if (stage.prefix) return stage.prefix->verdict();
    if (!facts_.prefix_cache || !reads_samples(stage.stage)) continue;
    return PrefixPath::refusal(*facts_.prefix_cache, *stage.session);
  }
  return {};
}

void Worker::forward(Stage& stage, const Bound& action) {
  const int slot = slot_of(stage, action.microbatch);
  const int64_t rows = rows_of(stage, action.microbatch);
  const int64_t number = number_of(action.microbatch);
  timed(Activity::Send, stage, number, [&] { await_departures(stage, Direction::Activation, slot); });
  timed(Activity::Data, stage, number, [&] { take_data(stage, action.microbatch, slot); });
  if (evaluating_) {
    timed(Activity::Evaluate, stage, number, [&] {
      if (rows > 0) stage.session->evaluate(slot, rows);
      backend_.wait();
      if (rows > 0 && facts_.scorer && stage.stage == facts_.loss_stage()) score(stage, slot, rows);
    });
    return;
  }
  const Session::Place place = place_of(stage, action);
  timed(Activity::Forward, stage, number, [&] {
    const backend::StepContext context = context_of(stage, action.microbatch, place.update);
    if (rows > 0 && stage.prefix) {
      stage.prefix->forward(*stage.batch, samples_of(stage, action.microbatch), place, context);
    } else if (rows > 0) {
      stage.session->forward(place, context);
    }
    after_compute();
  });
  if (versions_.size() < versions_.capacity()) versions_.push_back({stage.stage, number, place.version, -1});
  bring_next(stage);
  if (stage.stage == facts_.loss_stage() && !flies()) tell_metrics(stage, action.microbatch);
}

void Worker::tell_metrics(Stage& stage, int microbatch) {
  const Pipeline& pipeline = facts_.plan.pipeline;
  stage.metrics += stage.session->take_metrics();
  int expected = 1;
  if (pipeline.synchronous()) {
    expected = pipeline.replicas == job::Replicas::Split ? pipeline.microbatches
                                                         : pipeline.microbatches / pipeline.num_replicas(stage.stage);
  }
  if (++stage.forwards_in_step < expected) return;
  const std::span<const int64_t> samples = stage.batch ? stage.batch->samples : std::span<const int64_t>();
  if (events_->on_step) events_->on_step(step_of(microbatch), stage.metrics, samples);
  stage.metrics = {};
  stage.forwards_in_step = 0;
}

void Worker::backward(Stage& stage, const Bound& action) {
  const int gradient_slot = gradient_slot_of(stage, action.microbatch);
  const int64_t rows = rows_of(stage, action.microbatch);
  const int64_t number = number_of(action.microbatch);
  const bool first_part = action.part == schedule::kWhole || action.part == 0;
  if (first_part) {
    timed(Activity::Send, stage, number, [&] { await_departures(stage, Direction::Gradient, gradient_slot); });
    stage.rows_in_update += rows;
    for (VersionUse& use : versions_) {
      if (use.stage == stage.stage && use.minibatch == number) use.backward = place_of(stage, action).version;
    }
  }
  const Session::Place place = place_of(stage, action);
  if (rows > 0) {
    const bool later = flies();
    int64_t begin = later ? mark() : Timeline::now_ns();
    auto after = [&](graph::Pass pass) {
      after_compute();
      const int64_t end = later ? mark() : Timeline::now_ns();
      const bool updates = pass == graph::Pass::Update;  // as early as its gradient is complete
      const Activity activity = updates                           ? Activity::Step
                                : pass == graph::Pass::Forward    ? Activity::Recompute
                                : pass == graph::Pass::WeightGrad ? Activity::WeightGrad
                                                                  : Activity::InputGrad;
      keep({begin, end, updates ? place.update : number, stage.stage, activity}, later);
      begin = end;
    };
    stage.session->backward(action.part, place, context_of(stage, action.microbatch, place.update), after);
    return;
  }
  // Nothing but padding: no gradient goes back, and none is added.
  timed(Activity::InputGrad, stage, number, [&] {
    for (Port& port : stage.ports) {
      for (Port::Piece& piece : port.pieces) {
        if (port.entering && !piece.gradient.empty()) backend_.zero(piece.gradient[gradient_slot], piece.bytes);
      }
    }
    if (stage.session->options().microbatches > 1 || action.part == schedule::kWhole) return;
    std::span<float> bucket = stage.session->bucket(action.part);
    if (action.part + 1 == static_cast<int>(stage.session->num_buckets())) {
      bucket = bucket.first(bucket.size() - stage.session->statistics().size());
    }
    backend_.zero(bucket.data(), bucket.size_bytes());
  });
}

void Worker::message(Stage& stage, const Bound& action) {
  Port& port = stage.ports[action.port];
  const bool activation = action.direction == Direction::Activation;
  const int slot = activation ? slot_of(stage, action.microbatch) : gradient_slot_of(stage, action.microbatch);
  const Activity activity = action.kind == Kind::Send ? Activity::Send : Activity::Receive;
  timed(activity, stage, number_of(action.microbatch), [&] {
    // What leaves may lie where it came in: the slot is not opened for another micro-batch before it is gone.
    if (action.kind == Kind::Post && activation) await_departures(stage, Direction::Activation, slot);
    for (Port::Piece& piece : port.pieces) {
      if (!activation && piece.gradient.empty()) continue;
      std::byte* data = !activation   ? piece.gradient[slot]
                        : evaluating_ ? piece.evaluation[slot]
                                      : piece.activation[slot];
      comm::Ticket& ticket = activation ? piece.activation_ticket[slot] : piece.gradient_ticket[slot];
      const int tag = (activation ? piece.activation_tag : piece.gradient_tag) + action.microbatch % window_;
      if (action.kind == Kind::Post) ticket = endpoint_.receive(port.peer, tag, data, piece.bytes);
      if (action.kind == Kind::Send) ticket = endpoint_.send(port.peer, tag, data, piece.bytes);
      if (action.kind != Kind::Receive) continue;
      const int64_t begin = Timeline::now_ns();
      endpoint_.wait(ticket);
      // The rest of the wait was for the other stage to compute.
      const double waited_s = static_cast<double>(Timeline::now_ns() - begin) * 1e-9;
      if (!evaluating_) {
        exposed_s_ += std::min(waited_s, static_cast<double>(piece.bytes) * endpoint_.seconds_per_byte());
      }
    }
  });
}

void Worker::reduce(Stage& stage, const Bound& action) {
  const Pipeline& pipeline = facts_.plan.pipeline;
  const bool last = action.part + 1 == static_cast<int>(stage.session->num_buckets());
  timed(Activity::Reduce, stage, stage.first_update + action.microbatch, [&] {
    std::span<float> bucket = stage.session->bucket(action.part);
    std::span<float> gradients = bucket;
    if (last) gradients = bucket.first(bucket.size() - stage.session->statistics().size());
    // Replicas that take minibatches in turn average them, by samples; a share of one batch is weighted already.
    int64_t rows_of_all = 0;
    const bool in_turn = !pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin;
    if (in_turn) {
      const int replicas = pipeline.num_replicas(stage.stage);
      for (int r = 0; r < replicas; ++r) {
        const int64_t step = first_step_ + action.microbatch * replicas + r;
        if (step < facts_.total_steps) rows_of_all += facts_.rows_of_step(step);
      }
    } else {
      rows_of_all = facts_.rows_of_step(first_step_ + action.microbatch);
    }
    const auto share = static_cast<float>(static_cast<double>(stage.rows_in_update) / static_cast<double>(rows_of_all));
    auto weigh = [&](std::span<float> values) {
      if (stage.rows_in_update == 0) {
        backend_.zero(values.data(), values.size_bytes());
      } else if (stage.rows_in_update != rows_of_all) {
        backend_.scale(values.data(), values.size(), share);
      }
    };
    if (in_turn) weigh(gradients);
    if (last) {
      weigh(stage.session->statistics());
      stage.rows_in_update = 0;
    }
    endpoint_.start_sum(stage.stage, action.part, bucket);
  });
}

void Worker::step(Stage& stage, const Bound& action) {
  const int64_t update = stage.first_update + action.microbatch;
  if (action.part != schedule::kWhole) {
    timed(Activity::Reduce, stage, update, [&] { endpoint_.await_sum(stage.stage, action.part); });
  } else {
    stage.rows_in_update = 0;
  }
  Session& session = *stage.session;
  if (session.updates_whole()) {
    const bool last = action.part == schedule::kWhole || action.part + 1 == static_cast<int>(session.num_buckets());
    if (last) step_together(stage, update);
    return;
  }
  timed(Activity::Step, stage, update, [&] {
    session.update(action.part, update, context_of(stage, 0, update));
    after_compute();
  });
}

// An update that needs to know something of all gradients, of all stages: nothing is updated before that is known. Only
// a stage's first replica has a say in the sums over stages: all replicas know the same.
void Worker::step_together(Stage& stage, int64_t update) {
  Session& session = *stage.session;
  const Pipeline& pipeline = facts_.plan.pipeline;
  const backend::StepContext context = context_of(stage, 0, update);
  const auto sum = [&](int group, std::span<float> data) {
    timed(Activity::Reduce, stage, update, [&] {
      endpoint_.start_sum(group, 0, data);
      endpoint_.await_sum(group, 0);
    });
  };
  timed(Activity::Step, stage, update, [&] {
    session.sum_gradients(context);
    for (const TiedGradient& tied : stage.tied) {
      if (stage.replica > 0) backend_.zero(tied.memory.data(), tied.memory.size_bytes());
    }
    if (!stage.tied.empty()) after_compute();
  });
  for (const TiedGradient& tied : stage.tied) sum(tied.group, tied.memory);
  if (session.has_agreement()) {
    const std::span<float> agreement = session.agreement(), squares = agreement.subspan(1);
    timed(Activity::Step, stage, update, [&] {
      session.check_gradients(context);
      if (pipeline.agrees_on_steps && stage.replica > 0) backend_.zero(squares.data(), squares.size_bytes());
      after_compute();
    });
    if (pipeline.agrees_on_steps) sum(facts_.plan.agreement_group(), agreement);
  }
  timed(Activity::Step, stage, update, [&] {
    session.update(Session::kWhole, update, context);
    after_compute();
  });
}

}  // namespace millrace::runtime
