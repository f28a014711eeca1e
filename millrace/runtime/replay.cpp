#include "millrace/runtime/replay.h"

#include <algorithm>
#include <map>

#include "millrace/schedule/simulator.h"

namespace millrace::runtime {
namespace {

using schedule::Pipeline;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median seconds of an activity on a stage, what belongs to one micro-batch or update taken together. The first update
// of each stage is left out: memory is touched for the first time.
std::optional<double> typical_s(const std::vector<WorkerRecord>& records, int stage, Activity activity, int64_t first) {
  std::map<std::pair<int, int64_t>, double> sums;
  for (const WorkerRecord& record : records) {
    for (const Span& span : record.spans) {
      if (span.stage != stage || span.activity != activity || span.microbatch < first) continue;
      sums[{record.worker, span.microbatch}] += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
    }
  }
  if (sums.empty()) return std::nullopt;
  std::vector<double> values;
  for (const auto& [key, seconds] : sums) values.push_back(seconds);
  return median(std::move(values));
}

}  // namespace

std::optional<double> replayed_step_s(const plan::Plan& plan, const schedule::Schedule& shape,
                                      const std::vector<WorkerRecord>& records) {
  const Pipeline& pipeline = plan.pipeline;
  schedule::Costs costs;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    const int64_t first = pipeline.synchronous() ? pipeline.microbatches : 2 * pipeline.versions[s];
    const auto forward = typical_s(records, s, Activity::Forward, first);
    const auto input_grad = typical_s(records, s, Activity::InputGrad, first);
    const auto weight_grad = typical_s(records, s, Activity::WeightGrad, first);
    const auto step = typical_s(records, s, Activity::Step, 1);
    if (!forward || !weight_grad || !step) return std::nullopt;
    costs.forward_s.push_back(*forward);
    costs.input_grad_s.push_back(input_grad.value_or(0));  // a stage of one layer on the images has none
    costs.weight_grad_s.push_back(*weight_grad);
    costs.step_s.push_back(*step);
  }
  auto makespan = [&](int updates) {
    schedule::Schedule lists = compute_schedule(pipeline, updates);
    lists.slots = shape.slots;
    lists.gradient_slots = shape.gradient_slots;
    return simulate(lower(std::move(lists)), costs).makespan_s;
  };
  // What one more update takes once the pipeline is full.
  const int few = pipeline.synchronous() ? 1 : 8 * pipeline.num_workers, more = 2 * few;
  return (makespan(more) - makespan(few)) / (more - few);
}

}  // namespace millrace::runtime
