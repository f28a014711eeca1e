#include "millrace/data/loader.h"

#include <algorithm>
#include <chrono>

#include "millrace/base/error.h"
#include "millrace/data/sampler.h"

namespace millrace::data {

int64_t Loader::rows_of(const LoaderOptions& options) {
  if (options.ranges.empty()) return options.batch;
  int64_t rows = 0;
  for (const RowRange& range : options.ranges) rows += range.size();
  return rows;
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset),
      options_(options),
      rows_(rows_of(options)),
      batches_per_epoch_(options.batch > 0 ? (dataset.size() + options.batch - 1) / options.batch : 0),
      fixed_(dataset.one_fixed_batch()) {
  if (options.batch < 1) fail_input("batch: {} samples per step; write 1 or more", options.batch);
  if (dataset.size() < 1) fail_input("data: the data set has no samples to load");
  if (fixed_ && dataset.size() != options.batch) {
    fail_input("data: the fixed batch has {} samples, the loader's batch {}", dataset.size(), options.batch);
  }

  const auto rows = static_cast<size_t>(rows_);
  for (int i = 0; i < num_slots(dataset); ++i) {
    slots_[i].samples.resize(rows);
    if (options.images) slots_[i].images.resize(rows * static_cast<size_t>(dataset.image_elements()));
    if (options.labels) slots_[i].labels.resize(rows);
  }
  if (fixed_) {
    fill(0, slots_[0]);
  } else {
    thread_ = std::thread([this] { fill_ahead(); });
  }
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

const Batch& Loader::next() {
  if (fixed_) {
    slots_[0].batch.epoch = options_.first_batch + options_.stride * taken_++;  // an epoch is this one batch
    return slots_[0].batch;
  }
  std::unique_lock lock(mutex_);
  const int64_t wanted = taken_++;
  changed_.notify_all();  // the slot of the batch before is free again
  if (filled_ <= wanted && !failure_) {
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return filled_ > wanted || failure_; });
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (filled_ <= wanted) std::rethrow_exception(failure_);
  return slots_[wanted % 2].batch;
}

int64_t Loader::buffer_bytes(const Dataset& dataset, const LoaderOptions& options) {
  const int64_t image = options.images ? dataset.image_elements() * int64_t{sizeof(float)} : 0;
  const int64_t label = options.labels ? int64_t{sizeof(int32_t)} : 0;
  return num_slots(dataset) * rows_of(options) * (image + label + int64_t{sizeof(int64_t)});
}

void Loader::fill_ahead() {
  try {
    for (int64_t n = 0;; ++n) {
      {
        std::unique_lock lock(mutex_);
        // Batch n goes where n - 2 was, which the caller gave up by asking for n - 1.
        changed_.wait(lock, [&] { return stop_ || n < std::max<int64_t>(taken_, 1) + 1; });
        if (stop_) return;
      }
      fill(options_.first_batch + options_.stride * n, slots_[n % 2]);
      const std::lock_guard lock(mutex_);
      filled_ = n + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void Loader::fill(int64_t batch, Slot& slot) const {
  const int64_t epoch = batch / batches_per_epoch_;
  const int64_t index = batch % batches_per_epoch_;
  const int64_t first = index * options_.batch;
  const int64_t in_batch = std::min(options_.batch, dataset_.size() - first);
  const Permutation order = epoch_order(dataset_.size(), options_.seed, epoch);
  const bool shuffles = options_.shuffle && !fixed_;
  const RowRange whole{0, options_.batch};
  const std::span<const RowRange> ranges =
      options_.ranges.empty() ? std::span(&whole, 1) : std::span<const RowRange>(options_.ranges);

  const int64_t elements = dataset_.image_elements();
  int64_t row = 0, loaded = 0;  // where the range begins; samples so far
  for (const RowRange& range : ranges) {
    const int64_t count = std::clamp<int64_t>(in_batch - range.begin, 0, range.size());
    const std::span<int64_t> samples(slot.samples.data() + loaded, static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = first + range.begin + i;
      samples[i] = shuffles ? order[place] : place;
    }
    float* images = options_.images ? slot.images.data() + row * elements : nullptr;
    int32_t* labels = options_.labels ? slot.labels.data() + row : nullptr;
    dataset_.fill(samples, epoch, images, labels);
    if (images) std::fill(images + count * elements, images + range.size() * elements, 0.0f);
    if (labels) std::fill(labels + count, labels + range.size(), kNoLabel);
    row += range.size();
    loaded += count;
  }
  slot.batch = {epoch,       index,      in_batch, std::span(slot.samples).first(static_cast<size_t>(loaded)),
                slot.images, slot.labels};
}

}  // namespace millrace::data
