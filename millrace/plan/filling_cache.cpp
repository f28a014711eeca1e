#include "millrace/plan/filling_cache.h"

#include <utility>

#include "millrace/model/model.h"
#include "millrace/plan/frozen_costs.h"

namespace millrace::plan {

std::vector<profile::Profile> with_kept(std::vector<profile::Profile> profiles, job::Job job, int kept) {
  if (kept == 0) return profiles;
  job.model.frozen = kept;
  job.elastic.cache = true;
  const graph::Graph graph = model::training_graph(job, 1);
  for (profile::Profile& profile : profiles) price_frozen(job, graph, profile);
  return profiles;
}

Prediction predict_filling(job::Job job, const Plan& plan, const std::vector<profile::Profile>& profiles,
                           const Cluster& cluster, int kept) {
  job.elastic.cache = false;  // for the others
  return predict(job, plan, with_kept(profiles, job, kept), cluster);
}

}  // namespace millrace::plan
