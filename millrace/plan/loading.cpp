#include "millrace/plan/loading.h"

namespace millrace::plan {

data::LoaderOptions loader_options(const job::Job& job, const Plan& plan, int stage, int replica) {
  const schedule::Pipeline& pipeline = plan.pipeline;
  data::LoaderOptions options;
  options.batch = job.batch;
  options.seed = job.seed;
  options.images = stage == 0;
  options.labels = stage + 1 == pipeline.num_stages();
  const bool in_turn = !pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin;
  if (in_turn) {
    options.first_batch = replica;
    options.stride = pipeline.num_replicas(stage);
  }
  const schedule::Rows rows = plan.rows(stage, replica);
  const int parts = pipeline.synchronous() ? pipeline.microbatches : 1;
  for (int m = 0; m < parts; ++m) {
    if (!in_turn && !takes(pipeline, stage, replica, m)) continue;
    options.ranges.push_back({m * pipeline.rows + rows.begin, m * pipeline.rows + rows.end});
  }
  return options;
}

bool needs_loader(const data::Dataset& dataset, const Plan& plan, int stage, const data::LoaderOptions& options) {
  if (stage != 0 && stage + 1 != plan.pipeline.num_stages()) return false;
  return !dataset.one_fixed_batch() || options.ranges.size() > 1;
}

int64_t loading_bytes(const job::Job& job, const data::Dataset& dataset, const Plan& plan, int stage, int replica) {
  const data::LoaderOptions options = loader_options(job, plan, stage, replica);
  if (job.device == job::Device::Cuda || !needs_loader(dataset, plan, stage, options)) return 0;
  return data::Loader::buffer_bytes(dataset, options);
}

}  // namespace millrace::plan
