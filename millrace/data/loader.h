// Batches, filled ahead of their use by threads of their own into host buffers allocated once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
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
// features is zero and the rest of its labels kNoLabel, so that every batch has the shape that was planned.
struct Batch {
  int64_t epoch = 0;
  int64_t index = 0;                 // within the epoch
  int64_t rows = 0;                  // samples in the whole batch
  std::span<const int64_t> samples;  // those that were loaded
  std::span<std::byte> features;     // the ranges one after another
  std::span<int32_t> labels;
  size_t feature_bytes = 0, label_elements = 1;  // of a row
  // Above 0: `shortened` holds what a shortcut gave for every row, and features may hold anything.
  int shortcut = 0;
  std::span<std::byte> shortened;
  size_t shortened_bytes = 0;  // of a row

  // From a row on; null where they are not loaded.
  const std::byte* features_from(size_t row) const {
    return features.empty() ? nullptr : features.data() + row * feature_bytes;
  }
  const int32_t* labels_from(size_t row) const {
    return labels.empty() ? nullptr : labels.data() + row * label_elements;
  }
};

// Something that may be known of a sample instead of its features. All functions are called from several threads.
struct Shortcut {
  size_t row_bytes = 0;  // at most
  // Which one is tried for a batch of the epoch; 0: none.
  std::function<int(int64_t epoch)> which;
  std::function<size_t(int which)> bytes_of_row;
  // False: it is not known after all; the batch is then loaded with its features.
  std::function<bool(int which, int64_t sample, int64_t epoch, std::span<std::byte> row)> fetch;
  bool with_features = false;  // they are needed besides
};

struct LoaderOptions {
  int64_t batch = 1;
  uint64_t seed = 0;
  bool shuffle = true;                // false: samples in the order of their ids (evaluation)
  int64_t first_batch = 0;            // counted over all epochs; where a resumed run goes on
  int64_t stride = 1;                 // from one batch to the next: replicas may take them in turn
  int64_t num_batches = 0;            // to load in all; 0: without end
  std::vector<RowRange> ranges = {};  // rows to load; empty: all
  bool features = true;
  bool labels = true;
  int threads = 1;
  int ahead = 1;  // batches filled while the caller has one
  const Shortcut* shortcut = nullptr;
};

class Loader {
 public:
  // The data set must outlive the loader and have at least one sample.
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  int64_t batches_per_epoch() const { return batches_per_epoch_; }

  // The next batch, epoch after epoch; valid until next() is called again. Rethrows what went wrong while filling it.
  const Batch& next();

  // The batch after it, if it is there already; null: not yet, or there is none.
  const Batch* peek();

  // The memory that all batches come in.
  std::vector<std::span<std::byte>> buffers();

  // Time that next() had to wait for data, in all.
  double waited_s() const { return waited_s_; }

  // What a loader's buffers take in memory.
  static int64_t buffer_bytes(const Dataset& dataset, const LoaderOptions& options);

 private:
  struct Slot {
    std::vector<int64_t> of_row;   // the sample of each row; kNoSample: none
    std::vector<int64_t> samples;  // those there are
    std::vector<std::byte> features;
    std::vector<int32_t> labels;
    std::vector<std::byte> shortened;
    std::atomic<bool> unknown = false;  // the shortcut failed for a row
    Batch batch;
    int64_t rows_left = 0;  // to be filled by somebody
  };
  static constexpr int64_t kNoSample = -1;
  // Rows that a thread fills at once.
  struct Piece {
    int64_t batch = 0;  // counted as they are taken
    RowRange rows;      // of those that are loaded
  };

  static int num_slots(const Dataset& dataset, const LoaderOptions& options);
  static int64_t rows_of(const LoaderOptions& options);
  Slot& slot_of(int64_t batch) { return slots_[static_cast<size_t>(batch) % slots_.size()]; }
  void begin(int64_t batch, Slot& slot) const;
  void fill(Reader& reader, Slot& slot, RowRange rows) const;
  void fill_plain(Reader& reader, Slot& slot, RowRange rows, bool features, bool labels) const;
  void fill_shortened(Slot& slot, RowRange rows) const;
  bool may_begin(int64_t batch) const;
  Piece claim();
  void work();
  void stop();

  const Dataset& dataset_;
  const LoaderOptions options_;
  const int64_t rows_;  // loaded of each batch
  const int64_t piece_rows_;
  const int64_t batches_per_epoch_;
  const bool fixed_;
  std::vector<Slot> slots_;  // the n-th batch lives in slot n % slots
  double waited_s_ = 0;

  // Batches are counted as they are taken: the caller has taken_ - 1, the first filled_ are complete, and the next
  // piece begins at next_row_ of next_batch_.
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t filled_ = 0;
  int64_t taken_ = 0;
  int64_t next_batch_ = 0;
  int64_t next_row_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::data
