#include "millrace/plan/project_elastic.h"

#include <algorithm>

#include "millrace/model/model.h"
#include "millrace/plan/filling_cache.h"
#include "millrace/plan/freeze_rule.h"

namespace millrace::plan {
namespace {

constexpr int kEpochs = 10;  // of the published runs

// Samples a second that come out of the hosts' memory at most, each host's at the rate of one link.
double fetched_per_s(const Published& experiment, const profile::Profile& profile, const job::Job& job,
                     const Cluster& cluster) {
  const graph::Graph graph = model::training_graph(job, 1);
  size_t last = 0;
  while (last + 1 < graph.ops.size() && graph.ops[last + 1].frozen) ++last;
  const double row_bytes =
      static_cast<double>(profile.operators[last].output_bytes) / static_cast<double>(profile.rows);
  return experiment.nodes * cluster.levels[0].bytes_per_s / row_bytes;
}

}  // namespace

double ElasticProjection::gain() const {
  double epochs_over_speed = 0;
  for (const ProjectedEpoch& epoch : epochs) epochs_over_speed += 1 / epoch.samples_per_s;
  return static_cast<double>(epochs.size()) / static_samples_per_s / epochs_over_speed;
}

ElasticProjection project_elastic(const Published& static_pipeline, const PublishedGain& published,
                                  const std::vector<profile::Profile>& profiles, const Cluster& cluster) {
  ElasticProjection projection{published, 0, {}};
  job::Job job = job_of(static_pipeline);
  const graph::Graph graph = model::training_graph(job, 1);
  const Plan first = make_plan(job, graph, static_cast<int>(cluster.devices.size()));
  projection.static_samples_per_s = predict(job, first, profiles, cluster).samples_per_s;
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.alpha = published.alpha;
  const int microbatches = job.parallel.microbatches;
  job.parallel = {};
  job.parallel.microbatches = microbatches;  // stay, as in a run
  FreezeState state;
  int kept = 0;
  ProjectedEpoch last{0, 0, "the static pipeline", projection.static_samples_per_s};
  projection.epochs.push_back(last);
  while (projection.epochs.size() < kEpochs) {
    decide_freezing(job.elastic, num_layers(graph), {}, {}, state);
    kept = last.frozen;
    apply_freezing(state);
    if (state.frozen != last.frozen || kept != last.kept) {
      job.model.frozen = state.frozen;
      const Candidate best = choose(job, with_kept(profiles, job, kept), cluster, synchronous_modes()).candidates[0];
      last = {state.frozen, kept, to_text(best), best.prediction.samples_per_s};
      if (kept > 0) {
        last.samples_per_s = std::min(last.samples_per_s, fetched_per_s(static_pipeline, profiles[0], job, cluster));
      }
    }
    projection.epochs.push_back(last);
  }
  return projection;
}

}  // namespace millrace::plan
