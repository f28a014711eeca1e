// What each kind of action does.
#include <algorithm>

#include "millrace/runtime/worker.h"

namespace millrace::runtime {

using schedule::Direction;
using schedule::Kind;
using schedule::Pipeline;

template <typename Body>
void Worker::timed(Activity activity, const Stage& stage, int64_t microbatch, Body&& body) {
  backend_.begin_range(name_of(activity));
  const bool later = is_compute(activity) && flies();
  const int64_t begin = later ? mark() : Timeline::now_ns();
  body();
  keep({begin, later ? mark() : Timeline::now_ns(), microbatch, stage.stage, activity}, later);
  backend_.end_range();
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
