#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/report/plan_report.h"
#include "millrace/schedule/messages.h"
#include "millrace/schedule/simulator.h"

namespace millrace::report {
namespace {

using runtime::Activity;
using runtime::WorkerRecord;
using schedule::Action;
using schedule::Kind;

int64_t ns(double seconds) { return std::llround(seconds * 1e9); }

// One worker's actions as the spans it would have recorded: what it waits for ends where the action begins.
class Recorder {
 public:
  Recorder(const schedule::Pipeline& pipeline, const schedule::Costs& costs, WorkerRecord& record)
      : pipeline_(pipeline), costs_(costs), record_(record) {}

  void add(const Action& action, const schedule::Span& span) {
    const int update = action.kind == Kind::Step || action.kind == Kind::Reduce ? action.microbatch : 0;
    switch (action.kind) {
      case Kind::Forward: keep(Activity::Forward, action.stage, action.microbatch, span); break;
      case Kind::Backward: add_backward(action, span); break;
      case Kind::InputGrad: keep(Activity::InputGrad, action.stage, action.microbatch, span); break;
      case Kind::WeightGrad: keep(Activity::WeightGrad, action.stage, action.microbatch, span); break;
      case Kind::Receive: keep(Activity::Receive, action.stage, action.microbatch, {free_at_s_, span.begin_s}); break;
      case Kind::Step:
        keep(Activity::Reduce, action.stage, update, {free_at_s_, span.begin_s});
        keep(Activity::Step, action.stage, update, span);
        break;
      default: break;
    }
    free_at_s_ = span.end_s;
  }

 private:
  // Gradients of values and of weights, in the proportion of the stage.
  void add_backward(const Action& action, const schedule::Span& span) {
    const auto& replica = costs_.replicas[action.stage][replica_on(pipeline_, action.stage, record_.worker)];
    const double both_s = replica.input_grad_s + replica.weight_grad_s;
    const double share = both_s > 0 ? replica.input_grad_s / both_s : 0;
    const double between_s = span.begin_s + share * (span.end_s - span.begin_s);
    keep(Activity::InputGrad, action.stage, action.microbatch, {span.begin_s, between_s});
    keep(Activity::WeightGrad, action.stage, action.microbatch, {between_s, span.end_s});
  }

  void keep(Activity activity, int stage, int64_t microbatch, const schedule::Span& span) {
    if (span.end_s <= span.begin_s) return;
    record_.spans.push_back({ns(span.begin_s), ns(span.end_s), microbatch, stage, activity});
    const bool waits = activity == Activity::Receive || activity == Activity::Reduce;
    (waits ? record_.waited_s : record_.busy_s) += span.end_s - span.begin_s;
  }

  const schedule::Pipeline& pipeline_;
  const schedule::Costs& costs_;
  WorkerRecord& record_;
  double free_at_s_ = 0;
};

}  // namespace

std::vector<WorkerRecord> simulated_records(const plan::Plan& plan, const plan::Prediction& prediction, int updates) {
  const schedule::Pipeline& pipeline = plan.pipeline;
  schedule::Schedule lists = compute_schedule(pipeline, updates);
  lists.slots = prediction.shape.slots;
  lists.gradient_slots = prediction.shape.gradient_slots;
  lists = lower(std::move(lists));
  const schedule::Timeline timeline = simulate(lists, prediction.costs);
  std::vector<WorkerRecord> records;
  for (int w = 0; w < pipeline.num_workers; ++w) {
    WorkerRecord& record = records.emplace_back();
    record.worker = w;
    record.device = fmt::format("{}:{}", plan.devices[w].node, plan.devices[w].device);
    record.host = fmt::format("node {} (predicted)", plan.devices[w].node);
    record.planned_bytes = std::llround(prediction.worker_bytes[w]);
    record.train_s = timeline.makespan_s;
    record.bytes_sent.assign(pipeline.num_workers, 0);
    for (const plan::LinkLoad& link : prediction.links) {
      if (link.from == w) record.bytes_sent[link.to] += std::llround(link.bytes * updates);
    }
    for (int s = 0; s < pipeline.num_stages(); ++s) {
      if (replica_on(pipeline, s, w) >= 0) record.stages.push_back(s);
    }
    Recorder recorder(pipeline, prediction.costs, record);
    for (size_t i = 0; i < lists.workers[w].size(); ++i) recorder.add(lists.workers[w][i], timeline.actions[w][i]);
  }
  return records;
}

}  // namespace millrace::report
