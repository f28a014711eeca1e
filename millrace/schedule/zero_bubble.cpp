// Zero-bubble schedules: backward is an input gradient, which the worker before waits for, and a weight gradient, which
// nobody waits for and which fills the time in which there is nothing else to do.
#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/schedule/generators.h"

namespace millrace::schedule {
namespace {

void check(const char* name, int num_workers, int microbatches) {
  if (num_workers >= 1 && microbatches >= 1) return;
  fail_input("{} schedule of {} workers and {} micro-batches: both must be at least 1", name, num_workers,
             microbatches);
}

// Writes the actions of one stage in micro-batch order, each kind by its own count. Counts go on past the last
// micro-batch without writing: a short schedule is a long one with its end left out.
class StageWriter {
 public:
  StageWriter(std::vector<Action>& actions, int stage, int microbatches)
      : actions_(actions), stage_(stage), microbatches_(microbatches) {}

  void forward() { write(Kind::Forward, forwards_); }
  void input_grad() { write(Kind::InputGrad, input_grads_); }
  void weight_grad() { write(Kind::WeightGrad, weight_grads_); }
  void backward() {
    input_grad();
    weight_grad();
  }
  int forwards() const { return forwards_; }
  int input_grads() const { return input_grads_; }
  void remaining_weight_grads() {
    while (weight_grads_ < input_grads_) weight_grad();
  }

 private:
  void write(Kind kind, int& count) {
    const int microbatch = count++;
    if (microbatch >= microbatches_) return;
    Action action;
    action.kind = kind;
    action.stage = stage_;
    action.microbatch = microbatch;
    actions_.push_back(action);
  }

  std::vector<Action>& actions_;
  int stage_, microbatches_;
  int forwards_ = 0, input_grads_ = 0, weight_grads_ = 0;
};

// A worker alternates as in 1F1B. Later workers reach their first backward sooner and have fewer activations alive:
// they hold back as many weight gradients as they have places in front of them, which evens out the memory.
void write_h1(std::vector<Action>& actions, int num_workers, int worker, int microbatches) {
  StageWriter stage(actions, worker, microbatches);
  const int ahead = std::min(num_workers - 1 - worker, microbatches);
  for (int n = 0; n < ahead; ++n) stage.forward();
  for (int n = 0; n < microbatches; ++n) {
    if (n + ahead < microbatches) stage.forward();
    stage.input_grad();
    if (n >= worker) stage.weight_grad();
  }
  stage.remaining_weight_grads();
}

// `down` is the worker's stage on the way to the last worker, `up` the one on the way back to the first.
void write_v(std::vector<Action>& actions, int num_workers, int worker, int microbatches) {
  const int after = num_workers - worker;  // workers from here to the turn
  const int full = std::max(microbatches, 2 * num_workers - 1);
  StageWriter down(actions, worker, microbatches), up(actions, 2 * num_workers - 1 - worker, microbatches);
  for (int n = 0; n < 2 * after - 1; ++n) down.forward();
  for (int n = 0; n < worker; ++n) {
    up.forward();
    down.forward();
  }
  for (int n = 0; n < after; ++n) {
    up.forward();
    up.backward();
  }
  while (up.forwards() < down.forwards() || down.forwards() < full) {
    if (down.forwards() < full) down.forward();
    down.backward();
    up.forward();
    up.backward();
  }
  for (int n = 0; n < worker; ++n) {
    down.input_grad();
    up.input_grad();
  }
  for (int n = 0; n < after; ++n) {
    down.input_grad();
    down.weight_grad();
  }
  up.remaining_weight_grads();
  down.remaining_weight_grads();
}

}  // namespace

Schedule zb_h1_schedule(int num_workers, int microbatches) {
  check("ZB-H1", num_workers, microbatches);
  Schedule schedule;
  schedule.pipeline = chain(job::Mode::OneFOneB, num_workers, microbatches);
  schedule.microbatches = microbatches;
  schedule.workers.resize(num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    write_h1(schedule.workers[worker], num_workers, worker, microbatches);
  }
  return schedule;
}

Schedule zb_v_schedule(int num_workers, int microbatches) {
  check("ZB-V", num_workers, microbatches);
  Schedule schedule;
  schedule.pipeline = chain(job::Mode::OneFOneB, 2 * num_workers, microbatches);
  schedule.pipeline.num_workers = num_workers;
  schedule.microbatches = microbatches;
  schedule.workers.resize(num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    schedule.pipeline.stages[worker] = schedule.pipeline.stages[2 * num_workers - 1 - worker] = {worker};
    write_v(schedule.workers[worker], num_workers, worker, microbatches);
  }
  return schedule;
}

}  // namespace millrace::schedule
