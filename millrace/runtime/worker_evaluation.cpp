// A worker's part in evaluations.
#include <algorithm>

#include "millrace/runtime/worker.h"

namespace millrace::runtime {

Metrics Worker::evaluate(const schedule::Schedule& schedule) {
  List& list = bind(schedule);
  const double transfer_s = endpoint_.transfer_s();
  const std::vector<int64_t> bytes = endpoint_.bytes_sent();
  evaluating_ = true;
  for (Stage& stage : stages_) open_test_data(stage);
  for (const Bound& action : list.actions) run(action);
  finish_messages();
  for (Stage& stage : stages_) {
    stage.test_loader.reset();
    stage.batch_number = -1;
  }
  evaluating_ = false;
  evaluation_transfer_s_ += endpoint_.transfer_s() - transfer_s;
  evaluation_bytes_.resize(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) evaluation_bytes_[i] += endpoint_.bytes_sent()[i] - bytes[i];
  Metrics total;
  for (Stage& stage : stages_) total += stage.session->take_metrics();
  if (facts_.scorer) add_figures(total);
  return total;
}

void Worker::score(const Stage& stage, int slot, int64_t rows) {
  const auto numbers = static_cast<size_t>(facts_.scorer->numbers_per_sample());
  scores_.resize(static_cast<size_t>(facts_.test_data->size()) * numbers);
  stage.session->read_logits(slot, logits_);
  const size_t of_row = logits_.size() / static_cast<size_t>(stage.rows.size());
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const int64_t sample = stage.batch->samples[row];
    facts_.scorer->score(sample, std::span<const float>(logits_).subspan(row * of_row, of_row),
                         std::span<float>(scores_).subspan(static_cast<size_t>(sample) * numbers, numbers));
  }
}

// Each replica of the loss has scored its samples; the first makes the figures of all.
void Worker::add_figures(Metrics& metrics) {
  const int loss_stage = facts_.loss_stage();
  for (const Stage& stage : stages_) {
    if (stage.stage != loss_stage) continue;
    scores_.resize(static_cast<size_t>(facts_.test_data->size()) *
                   static_cast<size_t>(facts_.scorer->numbers_per_sample()));
    if (facts_.plan.pipeline.num_replicas(loss_stage) > 1) {
      const int group = facts_.plan.score_group();
      endpoint_.start_sum(group, 0, scores_);
      endpoint_.await_sum(group, 0);
    }
    if (stage.replica > 0) continue;
    const std::vector<double> figures = facts_.scorer->figures(scores_);
    for (size_t i = 0; i < std::min(figures.size(), metrics.figures.size()); ++i) metrics.figures[i] = figures[i];
  }
  scores_.clear();
}

}  // namespace millrace::runtime
