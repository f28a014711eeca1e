// How samples come to a worker, or what frozen layers made of them.
#include <utility>

#include "millrace/runtime/worker.h"

namespace millrace::runtime {

// Of the rows that a stage loads of a batch, a micro-batch has those of one part.
int Worker::part_of(const Stage& stage, int microbatch) const {
  const schedule::Pipeline& pipeline = facts_.plan.pipeline;
  if (evaluating_ || !pipeline.synchronous()) return 0;
  return local_index(pipeline, stage.stage, microbatch % pipeline.microbatches);
}

void Worker::take_data(Stage& stage, int microbatch, int slot) {
  data::Loader* loader = evaluating_ ? stage.test_loader.get() : stage.loader.get();
  if (!loader) return;
  // A batch has all micro-batches of a step; in an evaluation it is one.
  const int64_t number = evaluating_ ? microbatch : step_of(microbatch);
  const bool shortened = stage.prefix && !evaluating_;
  if (number != stage.batch_number) {
    const double waited_s = loader->waited_s();
    backend_.await_brought();  // the memory of the batch before is given up
    stage.batch = &loader->next();
    stage.batch_number = number;
    const double late_s = backend_.brought_late_s() - std::exchange(stage.brought_late_s, backend_.brought_late_s());
    if (shortened) stage.prefix->take(*stage.batch, loader->waited_s() - waited_s + late_s);
  }
  stage.part = part_of(stage, microbatch);
  const auto row = static_cast<size_t>(stage.part * stage.rows.size());
  const bool is_known = shortened && stage.batch->shortcut > 0;
  if (is_known) stage.prefix->put(*stage.batch, row, slot);
  const bool has_features = !is_known || stage.prefix->shortcut().with_features;
  stage.session->put_input(slot, has_features ? stage.batch->features_from(row) : nullptr,
                           stage.batch->labels_from(row));
  stage.wants_next = !evaluating_ && stage.landing.memory;
}

// While a micro-batch is computed, what the next one reads comes to the device, if it is loaded already.
void Worker::bring_next(Stage& stage) {
  if (!stage.wants_next) return;
  const bool same = stage.part + 1 < stage.parts;
  const data::Batch* batch = same ? stage.batch : stage.loader->peek();
  if (!batch) return;
  stage.wants_next = false;
  const auto rows = static_cast<size_t>(stage.rows.size());
  const size_t row = same ? static_cast<size_t>(stage.part + 1) * rows : 0;
  const bool is_known = stage.prefix && batch->shortcut > 0;
  const Landing& landing = stage.landing;
  if (is_known) {
    backend_.bring(batch->shortened.data() + row * batch->shortened_bytes, rows * batch->shortened_bytes,
                   landing.memory + landing.shortened);
  }
  if (const std::byte* features = batch->features_from(row);
      features && (!is_known || stage.prefix->shortcut().with_features)) {
    backend_.bring(features, rows * batch->feature_bytes, landing.memory + landing.features);
  }
  if (const int32_t* labels = batch->labels_from(row)) {
    backend_.bring(labels, rows * batch->label_elements * sizeof(int32_t), landing.memory + landing.labels);
  }
}

// Of the micro-batch's rows, those that are samples come first.
std::span<const int64_t> Worker::samples_of(const Stage& stage, int microbatch) const {
  return stage.batch->samples.subspan(static_cast<size_t>(part_of(stage, microbatch) * stage.rows.size()),
                                      static_cast<size_t>(rows_of(stage, microbatch)));
}

double Worker::data_wait_s() const {
  double seconds = backend_.brought_late_s();
  for (const Stage& stage : stages_) seconds += stage.loader ? stage.loader->waited_s() : 0;
  return seconds;
}

int64_t Worker::rows_fetched() const {
  int64_t rows = 0;
  for (const Stage& stage : stages_) rows += stage.prefix ? stage.prefix->rows_fetched() : 0;
  return rows;
}

int64_t Worker::rows_computed() const {
  int64_t rows = 0;
  for (const Stage& stage : stages_) rows += stage.prefix ? stage.prefix->rows_computed() : 0;
  return rows;
}

std::optional<double> Worker::cache_lost_s() const {
  for (const Stage& stage : stages_) {
    if (stage.prefix) return stage.prefix->lost_s();
  }
  return std::nullopt;
}

std::string Worker::cache_verdict() const {
  for (const Stage& stage : stages_) {
    if (stage.prefix) return stage.prefix->verdict();
    if (!facts_.prefix_cache || !reads_samples(stage.stage)) continue;
    return PrefixPath::refusal(*facts_.prefix_cache, *stage.session);
  }
  return {};
}

}  // namespace millrace::runtime
