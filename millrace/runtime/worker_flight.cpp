// Steps of a worker that has a device to itself: their tasks are called while those of the step before are still being
// done, so that the device never waits for the host. What a step came to is told when the next one was called.
#include <cmath>
#include <utility>

#include "millrace/runtime/worker.h"

namespace millrace::runtime {

// Where somebody waits for this worker, or it for somebody, the device is waited for after each pass.
bool Worker::flies() const {
  const schedule::Pipeline& pipeline = facts_.plan.pipeline;
  return !backend_.on_host() && pipeline.num_workers == 1 && pipeline.synchronous() && !evaluating_;
}

void Worker::after_compute() {
  if (!flies()) backend_.wait();
}

// A point in the device's own order of things; its time is known once the device has passed it. Those of two steps that
// follow each other are apart.
int64_t Worker::mark() {
  const int64_t at = 2 * marks_++ + flight_;
  backend_.mark(static_cast<size_t>(at));
  return at;
}

void Worker::keep(const Span& span, bool later) {
  if (later) {
    flights_[flight_].marked.push_back(span);
    return;
  }
  timeline_.keep(span);
  if (!evaluating_) timeline_.sum(span);
}

void Worker::take_off(int64_t now_ns) {
  flight_ = 1 - flight_;
  marks_ = 0;
  Flight& flight = flights_[flight_];
  flight.marked.clear();
  flight.first_mark = mark();
  flight.began_ns = now_ns;  // if the device was idle; otherwise it is known when the one before has landed
}

void Worker::fly() {
  Flight& flight = flights_[flight_];
  for (const Stage& stage : stages_) {
    if (stage.stage != facts_.loss_stage()) continue;
    stage.session->send_metrics(static_cast<size_t>(flight_));
    flight.samples.clear();
    if (stage.batch) flight.samples.assign(stage.batch->samples.begin(), stage.batch->samples.end());
  }
  flight.step = first_step_;
  flight.last_mark = mark();
  flight.is_up = true;
  Flight& before = flights_[1 - flight_];
  if (!before.is_up) return;
  land(before, 1 - flight_);
  backend_.wait_for(static_cast<size_t>(flight.first_mark));
  flight.began_ns = before.began_ns + ns_between(before.first_mark, flight.first_mark);
}

void Worker::land(Flight& flight, int place) {
  backend_.wait_for(static_cast<size_t>(flight.last_mark));
  flight.is_up = false;
  for (const Span& span : flight.marked) {
    const auto at_ns = [&](int64_t at) { return flight.began_ns + ns_between(flight.first_mark, at); };
    keep({at_ns(span.begin_ns), at_ns(span.end_ns), span.microbatch, span.stage, span.activity}, false);
  }
  for (const Stage& stage : stages_) {
    if (stage.stage != facts_.loss_stage() || !events_->on_step) continue;
    events_->on_step(flight.step, stage.session->landed_metrics(static_cast<size_t>(place)), flight.samples);
  }
}

void Worker::settle() {
  if (!flights_[flight_].is_up) return;
  const int64_t begin = Timeline::now_ns();
  land(flights_[flight_], flight_);
  train_s_ += static_cast<double>(Timeline::now_ns() - begin) * 1e-9;
}

void Worker::finish_storing() {
  for (Stage& stage : stages_) {
    if (stage.prefix) stage.prefix->finish();
  }
}

int64_t Worker::ns_between(int64_t first, int64_t second) {
  return std::llround(backend_.seconds_between(static_cast<size_t>(first), static_cast<size_t>(second)) * 1e9);
}

}  // namespace millrace::runtime
