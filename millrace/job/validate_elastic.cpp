#include <cmath>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/validate.h"

namespace millrace::job {
namespace {

// Every switch needs something to work on.
void check_switches(const Job& job, const std::string& where) {
  const Elastic& elastic = job.elastic;
  const bool freezes = elastic.freeze != Freeze::Off;
  if (elastic.pipe && !freezes) {
    fail_input(
        "{}: elastic.pipe is on and elastic.freeze off: nothing would change that a pipeline could be cut anew "
        "for; write elastic.freeze: gradient, or elastic.pipe: off",
        where);
  }
  if (elastic.dp && !elastic.pipe) {
    fail_input(
        "{}: elastic.dp is on and elastic.pipe off: only a shorter pipeline frees devices; write elastic.pipe: "
        "on, or elastic.dp: off",
        where);
  }
  if (elastic.cache && !freezes && job.model.frozen == 0) {
    fail_input(
        "{}: elastic.cache is on and nothing is frozen whose output could be kept; write elastic.freeze: "
        "gradient, model.frozen: 6 or so, or elastic.cache: off",
        where);
  }
  if (elastic.cache && job.data.on_error == OnError::Skip) {
    fail_input(
        "{}: elastic.cache is on and data.on_error skip: whether a sample is skipped is seen only where it is "
        "read; write data.on_error: stop, or elastic.cache: off",
        where);
  }
  if (elastic.cache && elastic.cache_gib + elastic.cache_disk_gib == 0) {
    fail_input(
        "{}: elastic.cache is on and elastic.cache_gib and elastic.cache_disk_gib are 0; write e.g. "
        "elastic.cache_gib: 2",
        where);
  }
  if (elastic.grows && !elastic.dp) {
    fail_input(
        "{}: elastic.batch is grow and elastic.dp off: a batch grows with its replicas only; write elastic.dp: on, or "
        "elastic.batch: fixed",
        where);
  }
  if (elastic.guard > 0 && !freezes) {
    fail_input("{}: elastic.guard is {} and elastic.freeze off: there is nothing to take back; write elastic.guard: 0",
               where, elastic.guard);
  }
}

}  // namespace

void validate_elastic(const Job& job, const std::string& where) {
  check_switches(job, where);
  const Elastic& elastic = job.elastic;
  if (elastic.freeze == Freeze::Off) return;
  const Period::Unit unit = elastic.every.unit;
  if (unit == Period::Unit::Off || unit == Period::Unit::Minutes) {
    fail_input(
        "{}: elastic.every is {}; what freezes when must not depend on the clock: write e.g. 1 epoch, or 500 "
        "steps",
        where, find_field("elastic.every")->write(job));
  }
  const bool whole_epochs = unit == Period::Unit::Epochs && elastic.every.count == std::floor(elastic.every.count);
  if (elastic.grows && (!whole_epochs || job.steps > 0)) {
    fail_input(
        "{}: elastic.batch is grow, elastic.every {} and steps {}; steps of another size begin with an epoch: write "
        "elastic.every: 1 epoch, and epochs instead of steps",
        where, find_field("elastic.every")->write(job), job.steps);
  }
  const Mode mode = job.parallel.mode;
  if (mode == Mode::PipeDream || mode == Mode::Ssp || job.parallel.stale) {
    fail_input(
        "{}: elastic.freeze is {} and {}; layers freeze between steps that all stages have finished: write "
        "parallel.mode: 1f1b",
        where, find_field("elastic.freeze")->write(job),
        job.parallel.stale ? "parallel.stale true" : "parallel.mode " + find_field("parallel.mode")->write(job));
  }
  if (job.on_divergence == OnDivergence::Rollback) {
    fail_input(
        "{}: elastic.freeze is {} and on_divergence rollback, which could go back to a state with other layers "
        "frozen; write on_divergence: stop",
        where, find_field("elastic.freeze")->write(job));
  }
  if (elastic.guard > 0 && !job.data.has_test()) {
    fail_input("{}: elastic.guard is {} and there is no test data to judge by; write {}, or elastic.guard: 0", where,
               elastic.guard, is_from_files(job.data.kind) ? "data.test" : "data.test_samples");
  }
  if (elastic.guard > 0 && job.eval.every_epochs == 0) {
    fail_input(
        "{}: elastic.guard is {} and eval.every_epochs 0: the test loss is known at the end only; write "
        "eval.every_epochs: 1, or elastic.guard: 0",
        where, elastic.guard);
  }
}

}  // namespace millrace::job
