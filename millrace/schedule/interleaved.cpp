// Interleaved 1F1B. A worker's forwards, and its backwards, have a fixed order; the schedule is how they alternate.
#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/schedule/generators.h"

namespace millrace::schedule {
namespace {

struct Shape {
  int num_workers, stages_per_worker, microbatches;
  int actions() const { return stages_per_worker * microbatches; }  // of each direction, per worker
};

// The n-th forward of a worker: a group of num_workers micro-batches goes through its first stage, then its second...
Action forward(const Shape& shape, int worker, int n) {
  const int turn = n / shape.num_workers;
  const int chunk = turn % shape.stages_per_worker, group = turn / shape.stages_per_worker;
  Action action;
  action.kind = Kind::Forward;
  action.stage = chunk * shape.num_workers + worker;
  action.microbatch = group * shape.num_workers + n % shape.num_workers;
  return action;
}

// Backwards take the stages in reverse.
Action backward(const Shape& shape, int worker, int n) {
  Action action = forward(shape, worker, n);
  action.kind = Kind::Backward;
  const int chunk = action.stage / shape.num_workers;
  action.stage = (shape.stages_per_worker - 1 - chunk) * shape.num_workers + worker;
  return action;
}

// Forwards a worker is ahead of its backwards when it begins to alternate.
int warmup(const Shape& shape, int worker) {
  const int after = shape.num_workers - 1 - worker;
  if (shape.stages_per_worker == 1) return std::min(after, shape.actions());
  // Twice: a gradient needs as long to come back as the activation to get there.
  return std::min(2 * after + (shape.stages_per_worker - 1) * shape.num_workers, shape.actions());
}

}  // namespace

Schedule interleaved_schedule(int num_workers, int stages_per_worker, int microbatches) {
  if (num_workers < 1 || stages_per_worker < 1 || microbatches < 1) {
    fail_input("interleaved schedule of {} workers, {} stages each, {} micro-batches: all must be at least 1",
               num_workers, stages_per_worker, microbatches);
  }
  if (stages_per_worker > 1 && microbatches % num_workers != 0) {
    fail_input("interleaved schedule: {} micro-batches do not go in groups of {} workers; write {}", microbatches,
               num_workers, (microbatches / num_workers + 1) * num_workers);
  }
  const Shape shape{num_workers, stages_per_worker, microbatches};
  Schedule schedule;
  schedule.pipeline = chain(job::Mode::OneFOneB, num_workers * stages_per_worker, microbatches);
  schedule.pipeline.num_workers = num_workers;
  for (int stage = 0; stage < schedule.pipeline.num_stages(); ++stage) {
    schedule.pipeline.stages[stage] = {stage % num_workers};
  }
  schedule.microbatches = microbatches;
  for (int worker = 0; worker < num_workers; ++worker) {
    std::vector<Action>& actions = schedule.workers.emplace_back();
    const int ahead = warmup(shape, worker);
    for (int n = 0; n < shape.actions() + ahead; ++n) {
      if (n < shape.actions()) actions.push_back(forward(shape, worker, n));
      if (n >= ahead) actions.push_back(backward(shape, worker, n - ahead));
    }
  }
  return schedule;
}

}  // namespace millrace::schedule
