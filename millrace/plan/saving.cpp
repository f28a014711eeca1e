#include "millrace/plan/saving.h"

#include <set>

#include "millrace/model/model.h"

namespace millrace::plan {

int64_t saving_bytes(const job::Job& job, const graph::Graph& graph, const Plan& plan, int stage, int replica) {
  const bool saves = job.checkpoint.every.unit != job::Period::Unit::Off;
  if (!saves || replica > 0 || job.device == job::Device::Cuda) return 0;
  const graph::UpdateRule rule = model::update_rule(job.optimizer);
  // Newest and older weights, and the optimizer's.
  const int64_t of_weight = plan.pipeline.versions[stage] + (rule.velocity ? 1 : 0) + (rule.second_moment ? 1 : 0);
  const graph::StageSlice slice = plan.slice(stage);
  std::set<graph::ParamId> params;
  for (graph::OpId op = slice.begin(); op < slice.end(graph); ++op) {
    params.insert(graph.ops[op].params.begin(), graph.ops[op].params.end());
  }
  int64_t elements = 0;
  for (const graph::ParamId id : params) {
    const graph::Param& param = graph.params[id];
    elements += param.shape.elements() * (param.trainable() ? of_weight : 1);
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace millrace::plan
