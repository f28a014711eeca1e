// elastic.cache in the first epoch after more layers froze: what was kept before is fetched, what the other frozen
// layers make is computed once more and kept.
#pragma once

#include <vector>

#include "millrace/job/job.h"
#include "millrace/plan/predict.h"

namespace millrace::plan {

// Profiles in which the first `kept` layers cost nothing, and are one piece: what they make is known of every sample.
std::vector<profile::Profile> with_kept(std::vector<profile::Profile> profiles, job::Job job, int kept);

// What a plan will take while all but the first `kept` frozen layers are computed; predict() is of a cache that is
// full.
Prediction predict_filling(job::Job job, const Plan& plan, const std::vector<profile::Profile>& profiles,
                           const Cluster& cluster, int kept);

}  // namespace millrace::plan
