// Batches, filled ahead of their use by a thread of their own into two host buffers allocated once.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "millrace/data/dataset.h"

namespace millrace::data {

// Half-open range of rows of a batch.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// What a worker needs of a batch, in host memory. The last batch of an epoch may have fewer rows; the rest of its
// images is zero and the rest of its labels kNoLabel, so that every batch has the shape that was planned.
struct Batch {
  int64_t epoch = 0;
  int64_t index = 0;                 // within the epoch
  int64_t rows = 0;                  // samples in the whole batch
  std::span<const int64_t> samples;  // those that were loaded
  std::span<float> images;           // the ranges one after another
  std::span<int32_t> labels;
};

struct LoaderOptions {
  int64_t batch = 1;
  uint64_t seed = 0;
  bool shuffle = true;                // false: samples in the order of their ids (evaluation)
  int64_t first_batch = 0;            // counted over all epochs; where a resumed run goes on
  int64_t stride = 1;                 // from one batch to the next: replicas may take them in turn
  std::vector<RowRange> ranges = {};  // rows to load; empty: all
  bool images = true;
  bool labels = true;
};

class Loader {
 public:
  // The data set must outlive the loader and have at least one sample.
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  int64_t batches_per_epoch() const { return batches_per_epoch_; }

  // The next batch, epoch after epoch without end; valid until next() is called again. Rethrows what went wrong
  // while filling it.
  const Batch& next();

  // Time that next() had to wait for data, in all.
  double waited_s() const { return waited_s_; }

  // What a loader's buffers take in memory.
  static int64_t buffer_bytes(const Dataset& dataset, const LoaderOptions& options);

 private:
  struct Slot {
    std::vector<int64_t> samples;
    std::vector<float> images;
    std::vector<int32_t> labels;
    Batch batch;
  };

  static int num_slots(const Dataset& dataset) { return dataset.one_fixed_batch() ? 1 : 2; }
  static int64_t rows_of(const LoaderOptions& options);
  void fill(int64_t batch, Slot& slot) const;
  void fill_ahead();

  const Dataset& dataset_;
  const LoaderOptions options_;
  const int64_t rows_;  // loaded of each batch
  const int64_t batches_per_epoch_;
  const bool fixed_;
  std::array<Slot, 2> slots_;  // the n-th batch lives in slot n % 2
  double waited_s_ = 0;

  // Batches are counted as they are taken; [taken_ - 1, filled_) are in slots, taken_ - 1 being the caller's.
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t filled_ = 0;
  int64_t taken_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace millrace::data
