// What must hold between the keys of parallel.*, the batch and the placement.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/placement.h"
#include "millrace/job/stage_file.h"
#include "millrace/job/validate.h"

namespace millrace::job {
namespace {

bool is_asynchronous(Mode mode) { return mode == Mode::PipeDream || mode == Mode::Ssp; }

std::string mode_name(const Job& job) { return find_field("parallel.mode")->write(job); }

void check_sources(const Parallel& parallel, const std::string& where) {
  if (!parallel.placement.empty() && !parallel.stage_file.empty()) {
    fail_input("{}: parallel.placement and parallel.stage_file both say where stages run; remove one of them", where);
  }
  if (!parallel.stage_weights.empty() && !parallel.cuts.empty()) {
    fail_input("{}: parallel.stage_weights and parallel.cuts both say where stages begin; remove one of them", where);
  }
  if (!parallel.stage_file.empty() && !(parallel.stage_weights.empty() && parallel.cuts.empty())) {
    fail_input("{}: parallel.stage_file and parallel.{} both say where stages begin; remove one of them", where,
               parallel.cuts.empty() ? "stage_weights" : "cuts");
  }
}

Placement read_stages(const Parallel& parallel, const std::string& where) {
  try {
    return placed_stages(parallel);
  } catch (const std::invalid_argument& error) {
    fail_input("{}: parallel.stage_file: {}", where, error.what());
  }
}

void check_num_stages(const Job& job, size_t num_stages, const std::string& where) {
  if (job.parallel.mode == Mode::Dp) {
    if (num_stages <= 1) return;
    fail_input(
        "{}: parallel.mode is dp and there are {} stages; dp has one: write parallel.mode: 1f1b, or a placement "
        "without '.', e.g. parallel.placement: 0:0-7",
        where, num_stages);
  }
  if (num_stages == 0) {
    fail_input(
        "{}: parallel.mode is {} and parallel.placement empty; write where each stage runs, e.g. "
        "parallel.placement: 0:0.0:1, or parallel.mode: dp",
        where, mode_name(job));
  }
}

void check_counts(const Parallel& parallel, size_t num_stages, const std::string& where) {
  const size_t num_weights = parallel.stage_weights.empty() ? 0 : parse_stage_weights(parallel.stage_weights).size();
  if (num_weights > 0 && num_weights != num_stages) {
    fail_input("{}: parallel.stage_weights {} has {} weights and there are {} stages; write one for each", where,
               parallel.stage_weights, num_weights, num_stages);
  }
  if (!parallel.cuts.empty() && parallel.cuts.size() != num_stages - 1) {
    fail_input("{}: parallel.cuts has {} layers and there are {} stages; write {}, one for each stage after the first",
               where, parallel.cuts.size(), num_stages, num_stages - 1);
  }
  if (!parallel.versions.empty() && parallel.mode != Mode::Ssp) {
    fail_input("{}: parallel.versions are only for parallel.mode: ssp; remove them or write parallel.mode: ssp", where);
  }
  if (!parallel.versions.empty() && parallel.versions.size() != num_stages) {
    fail_input("{}: parallel.versions has {} numbers and there are {} stages; write one for each", where,
               parallel.versions.size(), num_stages);
  }
}

void check_ahead(const Parallel& parallel, size_t num_stages, const std::string& where) {
  if (parallel.ahead.empty() || parallel.ahead.size() == num_stages) return;
  fail_input("{}: parallel.ahead has {} numbers and there are {} stages; write one for each", where,
             parallel.ahead.size(), num_stages);
}

void check_asynchronous(const Job& job, const std::string& where) {
  if (!is_asynchronous(job.parallel.mode)) return;
  if (job.parallel.microbatches > 1) {
    fail_input(
        "{}: parallel.mode is {} and parallel.microbatches {}; asynchronous modes update once per minibatch: write "
        "parallel.microbatches: 1",
        where, mode_name(job), job.parallel.microbatches);
  }
  if (job.parallel.mode == Mode::Ssp && job.parallel.replicas == Replicas::RoundRobin) {
    fail_input(
        "{}: parallel.mode is ssp and parallel.replicas round_robin; ssp splits a batch over the replicas of a stage: "
        "write parallel.replicas: split",
        where);
  }
}

// Every replica has at least one row of every micro-batch.
void check_split(const Job& job, const Placement& stages, const std::string& where) {
  const int64_t parts = job.parallel.microbatches, rows = job.batch / parts;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const auto replicas = static_cast<int64_t>(stages[stage].size());
    if (rows >= replicas) continue;
    const std::string fewer_parts =
        job.batch >= replicas ? fmt::format(", or parallel.microbatches: {} or fewer", job.batch / replicas) : "";
    fail_input(
        "{}: a micro-batch has {} / {} = {} rows (batch / parallel.microbatches) and stage {} has {} replicas, each "
        "with at least one: write batch: {} or more{}",
        where, job.batch, parts, rows, stage, replicas, replicas * parts, fewer_parts);
  }
}

// The planner says where stages run and where they begin.
void check_auto(const Parallel& parallel, const std::string& where) {
  const auto refuse = [&](bool is_set, const char* key) {
    if (!is_set) return;
    fail_input("{}: parallel.mode is auto, which chooses parallel.{} itself; remove it, or write another mode", where,
               key);
  };
  refuse(!parallel.placement.empty(), "placement");
  refuse(!parallel.stage_file.empty(), "stage_file");
  refuse(!parallel.stage_weights.empty(), "stage_weights");
  refuse(!parallel.cuts.empty(), "cuts");
  refuse(!parallel.shares.empty(), "shares");
  refuse(!parallel.versions.empty(), "versions");
  refuse(!parallel.ahead.empty(), "ahead");
}

void check_shares(const Parallel& parallel, const Placement& stages, const std::string& where) {
  if (parallel.shares.empty()) return;
  if (parallel.replicas == Replicas::RoundRobin) {
    fail_input(
        "{}: parallel.shares say which rows of a micro-batch a replica takes and parallel.replicas is round_robin, "
        "whole ones in turn; remove the shares or write parallel.replicas: split",
        where);
  }
  if (stages.empty()) {
    fail_input("{}: parallel.shares {} need to know the replicas; write parallel.placement, e.g. 0:0-1", where,
               parallel.shares);
  }
  const Shares shares = parse_shares(parallel.shares);
  if (shares.size() != stages.size()) {
    fail_input("{}: parallel.shares {} are of {} stages and there are {}; write them for each, separated by dots",
               where, parallel.shares, shares.size(), stages.size());
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (shares[stage].size() == stages[stage].size()) continue;
    fail_input("{}: parallel.shares {} has {} for stage {}, which has {} replicas; write one for each", where,
               parallel.shares, shares[stage].size(), stage, stages[stage].size());
  }
}

// Every replica takes equally many whole micro-batches of a batch.
void check_round_robin(const Job& job, const Placement& stages, const std::string& where) {
  if (is_asynchronous(job.parallel.mode)) return;
  const int64_t parts = job.parallel.microbatches;
  int64_t turn = 1;  // micro-batches after which every stage is at its first replica again
  for (const auto& devices : stages) turn = std::min<int64_t>(std::lcm(turn, devices.size()), 1'000'000);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const auto replicas = static_cast<int64_t>(stages[stage].size());
    if (parts % replicas == 0) continue;
    fail_input(
        "{}: parallel.microbatches is {} and the {} replicas of stage {} take whole ones in turn (round_robin), "
        "equally many each: write parallel.microbatches: {}, or parallel.replicas: split",
        where, parts, replicas, stage, (parts + turn - 1) / turn * turn);
  }
}

}  // namespace

void validate_parallel(const Job& job, const std::string& where) {
  const Parallel& parallel = job.parallel;
  if (parallel.mode == Mode::Auto) return check_auto(parallel, where);
  check_sources(parallel, where);
  const Placement stages = read_stages(parallel, where);
  check_num_stages(job, stages.size(), where);
  check_counts(parallel, std::max<size_t>(stages.size(), 1), where);
  check_ahead(parallel, std::max<size_t>(stages.size(), 1), where);
  check_asynchronous(job, where);
  check_shares(parallel, stages, where);
  if (parallel.replicas == Replicas::Split) {
    check_split(job, stages, where);
  } else {
    check_round_robin(job, stages, where);
  }
}

}  // namespace millrace::job
