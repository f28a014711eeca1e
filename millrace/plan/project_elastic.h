// What layers that freeze would make of a published static pipeline: epoch by epoch, the plan that would be chosen for
// what still learns, and its predicted speed. Simulated from beginning to end.
#pragma once

#include <string>
#include <vector>

#include "millrace/plan/planner.h"
#include "millrace/plan/published.h"

namespace millrace::plan {

struct ProjectedEpoch {
  int frozen = 0;
  int kept = 0;  // of them, those whose output was kept in the epoch before; the others are computed once more
  std::string plan;
  double samples_per_s = 0;
};

struct ElasticProjection {
  PublishedGain published;
  double static_samples_per_s = 0;
  std::vector<ProjectedEpoch> epochs;
  double gain() const;  // the static pipeline's time over this one's, for as many epochs
};

// Layers freeze as the rule allows at most (job::Freeze::Schedule), once an epoch, and elastic.pipe, dp and cache are
// on. The first epoch runs on the static pipeline.
ElasticProjection project_elastic(const Published& static_pipeline, const PublishedGain& published,
                                  const std::vector<profile::Profile>& profiles, const Cluster& cluster);

}  // namespace millrace::plan
