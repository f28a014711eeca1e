#include "millrace/data/loader.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/data/sampler.h"

namespace millrace::data {

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset),
      options_(options),
      batches_per_epoch_(options.batch > 0 ? (dataset.size() + options.batch - 1) / options.batch : 0),
      fixed_(dataset.one_fixed_batch()),
      filled_(options.first_batch),
      taken_(options.first_batch) {
  if (options.batch < 1) fail_input("batch: {} samples per step; write 1 or more", options.batch);
  if (dataset.size() < 1) fail_input("data: the data set has no samples to load");
  if (fixed_ && dataset.size() != options.batch) {
    fail_input("data: the fixed batch has {} samples, the loader's batch {}", dataset.size(), options.batch);
  }

  const auto rows = static_cast<size_t>(options.batch);
  for (int i = 0; i < num_slots(dataset); ++i) {
    slots_[i].samples.resize(rows);
    slots_[i].images.resize(rows * static_cast<size_t>(dataset.image_elements()));
    slots_[i].labels.resize(rows);
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
    slots_[0].batch.epoch = taken_++;  // an epoch is this one batch
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

int64_t Loader::buffer_bytes(const Dataset& dataset, int64_t batch) {
  const auto row = dataset.image_elements() * int64_t{sizeof(float)} + int64_t{sizeof(int32_t) + sizeof(int64_t)};
  return num_slots(dataset) * batch * row;
}

void Loader::fill_ahead() {
  try {
    for (int64_t batch = options_.first_batch;; ++batch) {
      {
        std::unique_lock lock(mutex_);
        // Batch n goes where n - 2 was, which the caller gave up by asking for n - 1.
        changed_.wait(lock, [&] { return stop_ || batch < std::max(taken_, options_.first_batch + 1) + 1; });
        if (stop_) return;
      }
      fill(batch, slots_[batch % 2]);
      const std::lock_guard lock(mutex_);
      filled_ = batch + 1;
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
  const int64_t rows = std::min(options_.batch, dataset_.size() - first);
  const std::span<int64_t> samples(slot.samples.data(), static_cast<size_t>(rows));

  if (options_.shuffle && !fixed_) {
    const Permutation order = epoch_order(dataset_.size(), options_.seed, epoch);
    for (int64_t row = 0; row < rows; ++row) samples[row] = order[first + row];
  } else {
    std::iota(samples.begin(), samples.end(), first);
  }
  dataset_.fill(samples, epoch, slot.images.data(), slot.labels.data());
  std::fill(slot.images.begin() + rows * dataset_.image_elements(), slot.images.end(), 0.0f);
  std::fill(slot.labels.begin() + rows, slot.labels.end(), kNoLabel);
  slot.batch = {epoch, index, rows, samples, slot.images, slot.labels};
}

}  // namespace millrace::data
