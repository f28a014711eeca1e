#include "millrace/plan/loading.h"

namespace millrace::plan {

namespace {

data::LoaderOptions options_of(const job::Job& job, const Plan& plan, int stage) {
  data::LoaderOptions options;
  options.seed = job.seed;
  options.features = plan.reads_features[stage];
  options.labels = plan.reads_labels[stage];
  options.threads = job.data.threads;
  options.ahead = job.data.ahead;
  return options;
}

}  // namespace

data::LoaderOptions loader_options(const job::Job& job, const Plan& plan, int stage, int replica, int64_t first_batch) {
  const schedule::Pipeline& pipeline = plan.pipeline;
  data::LoaderOptions options = options_of(job, plan, stage);
  options.batch = job.batch;
  options.first_batch = first_batch;
  const bool in_turn = !pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin;
  if (in_turn) {
    options.first_batch += replica;
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

data::LoaderOptions evaluation_options(const job::Job& job, const Plan& plan, int stage, int replica, int64_t samples) {
  const schedule::Pipeline& pipeline = plan.pipeline;
  data::LoaderOptions options = options_of(job, plan, stage);
  options.batch = pipeline.rows;
  options.shuffle = false;
  const schedule::Rows rows = plan.rows(stage, replica);
  options.ranges = {{rows.begin, rows.end}};
  const auto parts = static_cast<int>((samples + pipeline.rows - 1) / pipeline.rows);
  int before = -1;
  for (int m = 0; m < parts; ++m) {
    if (!takes(pipeline, stage, replica, m)) continue;
    if (options.num_batches == 0) options.first_batch = m;
    if (options.num_batches == 1) options.stride = m - before;
    ++options.num_batches;
    before = m;
  }
  return options;
}

bool needs_loader(const data::Dataset& dataset, const Plan& plan, int stage, const data::LoaderOptions& options) {
  if (!plan.reads_features[stage] && !plan.reads_labels[stage]) return false;
  return !dataset.one_fixed_batch() || options.ranges.size() > 1;
}

LandingBytes landing_bytes(const data::Dataset& dataset, bool features, bool labels, int64_t rows) {
  LandingBytes bytes;
  if (features) {
    bytes.features = static_cast<int64_t>(landing_piece(static_cast<size_t>(dataset.feature_bytes()), rows));
  }
  if (labels) {
    const auto row = static_cast<size_t>(dataset.label_elements()) * sizeof(int32_t);
    bytes.labels = static_cast<int64_t>(landing_piece(row, rows));
  }
  return bytes;
}

int64_t loading_bytes(const job::Job& job, const data::Dataset& dataset, const Plan& plan, int stage, int replica) {
  const data::LoaderOptions options = loader_options(job, plan, stage, replica);
  if (job.device == job::Device::Cuda) {  // what lies in the host's memory is no matter of the GPU's
    if (!needs_loader(dataset, plan, stage, options)) return 0;
    return landing_bytes(dataset, options.features, options.labels, plan.rows(stage, replica).size()).all();
  }
  int64_t bytes = needs_loader(dataset, plan, stage, options) ? data::Loader::buffer_bytes(dataset, options) : 0;
  // Samples of the test split have the training split's shape.
  if (job.data.has_test()) {
    bytes += data::Loader::buffer_bytes(dataset, evaluation_options(job, plan, stage, replica, 0));
  }
  return bytes;
}

}  // namespace millrace::plan
