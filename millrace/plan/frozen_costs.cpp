#include "millrace/plan/frozen_costs.h"

namespace millrace::plan {

void price_frozen(const job::Job& job, const graph::Graph& graph, profile::Profile& profile) {
  int last = -1;
  for (size_t i = 0; i < profile.operators.size() && i < graph.ops.size(); ++i) {
    if (!graph.ops[i].frozen) continue;
    last = static_cast<int>(i);
    profile::Operator& op = profile.operators[i];
    op.input_grad = op.weight_grad = op.update = {};
    op.kept_bytes = op.param_bytes = 0;
    if (job.elastic.cache) op.forward = {};
  }
  if (job.elastic.cache && last > 0) profile.ties.push_back({0, last});
}

}  // namespace millrace::plan
