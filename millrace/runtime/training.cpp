#include "millrace/runtime/training.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "millrace/graph/fuse.h"
#include "millrace/job/lr_schedule.h"
#include "millrace/model/model.h"
#include "millrace/state/safetensors.h"

namespace millrace::runtime {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Training::Training(const job::Job& job, const MachineLimit& limit, const OnMeasure& on_measure)
    : job_(job), threads_(thread_count(job)) {
  graph_ = graph::fuse(model::build(job.model, job.batch / job.parallel.microbatches, job.loss.label_smoothing));
  if (!job.model.init.empty()) state::check_params(job.model.init, graph_);  // before kernels are measured
  train_data_ = data::make_dataset(job, data::Split::Train);
  if (job.data.kind == job::DataKind::Generated && job.data.test_samples > 0) {
    test_data_ = data::make_dataset(job, data::Split::Test);
  }

  const int64_t batches = (train_data_->size() + job.batch - 1) / job.batch;
  steps_per_epoch_ = static_cast<double>(batches);
  total_steps_ = job.steps > 0 ? job.steps : static_cast<int64_t>(std::ceil(job.epochs * steps_per_epoch_ - 1e-9));

  backend_ = make_backend(job, on_measure);
  SessionOptions options;
  options.microbatches = job.parallel.microbatches;
  options.velocity = job.optimizer.momentum > 0;
  options.evaluates = test_data_ != nullptr;
  options.seed = job.seed;
  options.memory_limit = limit.memory_bytes;
  options.limit_reason = limit.source;
  const bool loads = !train_data_->one_fixed_batch() || job.parallel.microbatches > 1;
  options.loader_bytes = loads ? static_cast<size_t>(data::Loader::buffer_bytes(*train_data_, job.batch)) : 0;
  session_ = std::make_unique<Session>(graph_, *backend_, options);
  load_parameters();

  if (loads) {
    loader_ = std::make_unique<data::Loader>(*train_data_, data::LoaderOptions{job.batch, job.seed, true, 0});
  } else {
    fill_directly();
  }
}

Training::~Training() = default;

void Training::load_parameters() {
  {
    state::State state = state::initial_state(graph_, job_.seed);
    if (!job_.model.init.empty()) state::load_params(job_.model.init, graph_, state);
    session_->load(state);
  }
  malloc_trim(0);  // the host copy goes back to the system, or it would stay on top of what was planned
}

void Training::fill_directly() {
  std::vector<int64_t> samples(static_cast<size_t>(job_.batch));
  std::iota(samples.begin(), samples.end(), 0);
  train_data_->fill(samples, 0, session_->images(), session_->labels());
}

size_t Training::planned_bytes() const {
  const auto loader = loader_ ? data::Loader::buffer_bytes(*train_data_, job_.batch) : 0;
  return session_->memory().planned_bytes + static_cast<size_t>(loader);
}

double Training::step_flops() const {
  double flops = 0;
  for (const graph::Node& node : session_->training_program().nodes) {
    const graph::Op& op = graph_.ops[node.op];
    if (node.kind == op.kind) flops += graph::forward_flops(graph_, op);
  }
  return flops * job_.parallel.microbatches;
}

TrainingResult Training::run(const Observer& observer) {
  TrainingResult result;
  const int64_t micro = graph_.batch();
  const int64_t image_elements = train_data_->image_elements();
  const auto epoch_steps = static_cast<int64_t>(steps_per_epoch_);
  int64_t evaluate_every = 0;  // steps; 0: only at the end
  if (job_.eval.every_epochs > 0) {
    evaluate_every = std::max<int64_t>(1, std::llround(job_.eval.every_epochs * steps_per_epoch_));
  }
  Metrics stretch;
  for (int64_t step = 0; step < total_steps_; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const data::Batch* batch = loader_ ? &loader_->next() : nullptr;
    const int64_t rows = batch ? batch->rows : job_.batch;
    const double lr = job::learning_rate(job_.optimizer, job_.schedule, step, steps_per_epoch_, total_steps_);
    const Metrics metrics = session_->train_step(step, rows, lr, [&](int m) {
      const int64_t first = m * micro;
      if (batch) {
        std::memcpy(session_->images(), batch->images.data() + first * image_elements,
                    static_cast<size_t>(micro * image_elements) * sizeof(float));
        std::memcpy(session_->labels(), batch->labels.data() + first, static_cast<size_t>(micro) * sizeof(int32_t));
      }
      return std::clamp<int64_t>(rows - first, 0, micro);
    });
    const double seconds = seconds_since(start);
    result.steps = step + 1;
    result.samples += static_cast<int64_t>(metrics.rows);
    result.train_s += seconds;
    if (step % epoch_steps == 0) stretch = {};
    stretch += metrics;
    result.last = stretch;
    observer.on_step({step, static_cast<double>(step + 1) / steps_per_epoch_, seconds, lr, metrics});
    if (observer.stop_if_diverged && !std::isfinite(metrics.loss())) {
      result.diverged = true;
      result.last = metrics;
      break;
    }

    const bool due = evaluate_every > 0 && (step + 1) % evaluate_every == 0;
    if (test_data_ && (due || step + 1 == total_steps_)) {
      result.evaluation = evaluate();
      observer.on_evaluation(static_cast<double>(step + 1) / steps_per_epoch_, *result.evaluation);
    }
  }
  result.data_wait_s = loader_ ? loader_->waited_s() : 0;
  return result;
}

Metrics Training::evaluate() {
  Metrics total;
  const int64_t rows = graph_.batch();
  std::vector<int64_t> samples;
  for (int64_t first = 0; first < test_data_->size(); first += rows) {
    const int64_t count = std::min(rows, test_data_->size() - first);
    samples.resize(static_cast<size_t>(count));
    std::iota(samples.begin(), samples.end(), first);
    test_data_->fill(samples, 0, session_->images(), session_->labels());
    total += session_->evaluate(count);
  }
  return total;
}

state::State Training::state() const {
  state::State state;
  session_->store(state);
  return state;
}

}  // namespace millrace::runtime
