#include "millrace/runtime/replay.h"

#include <map>
#include <numeric>

#include "millrace/base/median.h"
#include "millrace/schedule/steady.h"

namespace millrace::runtime {
namespace {

using schedule::Pipeline;

// Median seconds of an activity of a stage on a worker, what belongs to one micro-batch or update taken together. The
// first update of each stage is left out: memory is touched for the first time.
std::optional<double> typical_s(const WorkerRecord& record, int stage, Activity activity, int64_t first) {
  std::map<int64_t, double> sums;
  for (const Span& span : record.spans) {
    if (span.stage != stage || span.activity != activity || span.microbatch < first) continue;
    sums[span.microbatch] += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  }
  if (sums.empty()) return std::nullopt;
  std::vector<double> values;
  for (const auto& [key, seconds] : sums) values.push_back(seconds);
  return median(values);
}

std::optional<schedule::ReplicaCosts> replica_costs(const Pipeline& pipeline, int stage, const WorkerRecord& record) {
  const int64_t first = pipeline.synchronous() ? pipeline.microbatches : 2 * pipeline.versions[stage];
  const auto forward = typical_s(record, stage, Activity::Forward, first);
  const auto recompute = typical_s(record, stage, Activity::Recompute, first);
  const auto input_grad = typical_s(record, stage, Activity::InputGrad, first);
  const auto weight_grad = typical_s(record, stage, Activity::WeightGrad, first);
  const auto step = typical_s(record, stage, Activity::Step, 1);
  if (!forward || (!input_grad && !weight_grad) || !step) return std::nullopt;
  // A stage of one layer on the images has no input gradient; a device of its own does not tell the two apart.
  const double backward_s = recompute.value_or(0) + input_grad.value_or(0);
  return schedule::ReplicaCosts{*forward, backward_s, weight_grad.value_or(0), *step, {}, {}};
}

void scale(schedule::ReplicaCosts& costs, double factor) {
  for (double* seconds : {&costs.forward_s, &costs.input_grad_s, &costs.weight_grad_s, &costs.step_s})
    *seconds *= factor;
}

}  // namespace

std::optional<Replay> replay(const plan::Plan& plan, const schedule::Schedule& shape,
                             const std::vector<WorkerRecord>& records) {
  const Pipeline& pipeline = plan.pipeline;
  if (static_cast<int>(records.size()) != pipeline.num_workers) return std::nullopt;
  schedule::Costs costs;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    costs.replicas.emplace_back();
    for (int worker : pipeline.stages[s]) {
      const auto replica = replica_costs(pipeline, s, records[worker]);
      if (!replica) return std::nullopt;
      costs.replicas.back().push_back(*replica);
    }
  }
  Replay replay;
  replay.step_s = steady_step_s(shape, costs);
  const std::vector<double> busy = worker_seconds(pipeline, costs);
  replay.busy_s = std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    for (int r = 0; r < pipeline.num_replicas(s); ++r) {
      const double own_s = busy[pipeline.stages[s][r]];
      if (own_s > 0) scale(costs.replicas[s][r], replay.busy_s / own_s);
    }
  }
  replay.balanced_step_s = steady_step_s(shape, costs);
  return replay;
}

}  // namespace millrace::runtime
