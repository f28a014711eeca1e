#include "millrace/plan/saving.h"

#include <set>

#include "millrace/model/model.h"

namespace millrace::plan {
namespace {

// The first replica of a stage writes its part.
bool saves_on_the_way(const job::Job& job, int replica) {
  return job.checkpoint.every.unit != job::Period::Unit::Off && replica == 0;
}

}  // namespace

bool copies_on_device(const job::Job& job, int replica) {
  return job.device == job::Device::Cuda && saves_on_the_way(job, replica);
}

int64_t saving_bytes(const job::Job& job, const graph::Graph& graph, const Plan& plan, int stage, int replica) {
  if (job.device == job::Device::Cuda || !saves_on_the_way(job, replica)) return 0;
  const graph::UpdateRule rule = model::update_rule(job);
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
    elements += param.shape.elements() *
                (param.trainable() || (param.frozen && rule.may_unfreeze && !param.is_statistic()) ? of_weight : 1);
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace millrace::plan
