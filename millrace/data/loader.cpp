#include "millrace/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "millrace/base/error.h"
#include "millrace/data/sampler.h"

namespace millrace::data {
namespace {

constexpr int64_t kPiecesPerThread = 4;  // of a batch, so that threads end together

}  // namespace

int64_t Loader::rows_of(const LoaderOptions& options) {
  if (options.ranges.empty()) return options.batch;
  int64_t rows = 0;
  for (const RowRange& range : options.ranges) rows += range.size();
  return rows;
}

int Loader::num_slots(const Dataset& dataset, const LoaderOptions& options) {
  return dataset.one_fixed_batch() ? 1 : 1 + std::max(options.ahead, 1);
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset),
      options_(options),
      rows_(rows_of(options)),
      piece_rows_(std::max<int64_t>(1, rows_ / (kPiecesPerThread * std::max(options.threads, 1)))),
      batches_per_epoch_(options.batch > 0 ? (dataset.size() + options.batch - 1) / options.batch : 0),
      fixed_(dataset.one_fixed_batch()),
      slots_(static_cast<size_t>(num_slots(dataset, options))) {
  if (options.batch < 1) fail_input("batch: {} samples per step; write 1 or more", options.batch);
  if (dataset.size() < 1) fail_input("data: the data set has no samples to load");
  if (fixed_ && dataset.size() != options.batch) {
    fail_input("data: the fixed batch has {} samples, the loader's batch {}", dataset.size(), options.batch);
  }

  const auto rows = static_cast<size_t>(rows_);
  for (Slot& slot : slots_) {
    slot.of_row.resize(rows);
    slot.samples.resize(rows);
    if (options.features) slot.features.resize(rows * static_cast<size_t>(dataset.feature_bytes()));
    if (options.labels) slot.labels.resize(rows * static_cast<size_t>(dataset.label_elements()));
    if (options.shortcut) slot.shortened.resize(rows * options.shortcut->row_bytes);
  }
  if (fixed_) {
    begin(0, slots_[0]);
    fill(*dataset.reader(), slots_[0], {0, rows_});
    return;
  }
  try {
    for (int i = 0; i < std::max(options.threads, 1); ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

const Batch& Loader::next() {
  if (fixed_) {
    slots_[0].batch.epoch = options_.first_batch + options_.stride * taken_++;  // an epoch is this one batch
    return slots_[0].batch;
  }
  std::unique_lock lock(mutex_);
  const int64_t wanted = taken_++;
  if (options_.num_batches > 0 && wanted >= options_.num_batches) {
    fail_run("data: batch {} was asked for, the loader was made for {}", wanted, options_.num_batches);
  }
  changed_.notify_all();  // the slot of the batch before is free again
  if (filled_ <= wanted && !failure_) {
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return filled_ > wanted || failure_; });
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (filled_ <= wanted) std::rethrow_exception(failure_);
  return slot_of(wanted).batch;
}

const Batch* Loader::peek() {
  if (fixed_) return &slots_[0].batch;
  const std::lock_guard lock(mutex_);
  return filled_ > taken_ ? &slot_of(taken_).batch : nullptr;
}

std::vector<std::span<std::byte>> Loader::buffers() {
  std::vector<std::span<std::byte>> buffers;
  for (Slot& slot : slots_) {
    if (!slot.features.empty()) buffers.emplace_back(slot.features);
    if (!slot.shortened.empty()) buffers.emplace_back(slot.shortened);
    if (!slot.labels.empty()) buffers.push_back(std::as_writable_bytes(std::span(slot.labels)));
  }
  return buffers;
}

int64_t Loader::buffer_bytes(const Dataset& dataset, const LoaderOptions& options) {
  const int64_t features = options.features ? dataset.feature_bytes() : 0;
  const int64_t labels = options.labels ? dataset.label_elements() * int64_t{sizeof(int32_t)} : 0;
  const auto shortened = static_cast<int64_t>(options.shortcut ? options.shortcut->row_bytes : 0);
  return num_slots(dataset, options) * rows_of(options) *
         (features + labels + shortened + 2 * int64_t{sizeof(int64_t)});
}

// A batch goes where the one `slots` before it was, which the caller gave up by asking for the next.
bool Loader::may_begin(int64_t batch) const {
  if (options_.num_batches > 0 && batch >= options_.num_batches) return false;
  return batch < std::max<int64_t>(taken_, 1) - 1 + static_cast<int64_t>(slots_.size());
}

// The lock is held.
Loader::Piece Loader::claim() {
  if (next_row_ == 0) begin(options_.first_batch + options_.stride * next_batch_, slot_of(next_batch_));
  const Piece piece{next_batch_, {next_row_, std::min(next_row_ + piece_rows_, rows_)}};
  next_row_ = piece.rows.end;
  if (next_row_ == rows_) ++next_batch_, next_row_ = 0;
  return piece;
}

void Loader::work() {
  try {
    const std::unique_ptr<Reader> reader = dataset_.reader();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || failure_ || may_begin(next_batch_); });
      if (stop_ || failure_) return;
      const Piece piece = claim();
      Slot& slot = slot_of(piece.batch);
      lock.unlock();
      fill(*reader, slot, piece.rows);
      lock.lock();
      slot.rows_left -= piece.rows.size();
      if (slot.rows_left == 0 && slot.batch.shortcut > 0 && slot.unknown) {
        // One row that is not known: the whole batch takes the long way. Nobody else has the slot.
        slot.rows_left = rows_;
        slot.batch.shortcut = 0;
        lock.unlock();
        fill_plain(*reader, slot, {0, rows_}, options_.features, false);
        lock.lock();
        slot.rows_left = 0;
      }
      // Batches may be completed out of order; they are handed out in order.
      const int64_t before = filled_;
      while (filled_ < next_batch_ && slot_of(filled_).rows_left == 0) ++filled_;
      if (filled_ > before) changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    changed_.notify_all();
  }
}

// Which samples the batch has, and where.
void Loader::begin(int64_t batch, Slot& slot) const {
  const int64_t epoch = batch / batches_per_epoch_;
  const int64_t index = batch % batches_per_epoch_;
  const int64_t first = index * options_.batch;
  const int64_t in_batch = std::min(options_.batch, dataset_.size() - first);
  const Permutation order = epoch_order(dataset_.size(), options_.seed, epoch);
  const bool shuffles = options_.shuffle && !fixed_;
  const RowRange whole{0, options_.batch};
  const std::span<const RowRange> ranges =
      options_.ranges.empty() ? std::span(&whole, 1) : std::span<const RowRange>(options_.ranges);
  size_t row = 0, loaded = 0;
  for (const RowRange& range : ranges) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t sample = i >= in_batch ? kNoSample : shuffles ? order[first + i] : first + i;
      slot.of_row[row++] = sample;
      if (sample != kNoSample) slot.samples[loaded++] = sample;
    }
  }
  slot.rows_left = rows_;
  slot.batch = {};
  slot.batch.epoch = epoch;
  slot.batch.index = index;
  slot.batch.rows = in_batch;
  slot.batch.samples = std::span(slot.samples).first(loaded);
  slot.batch.features = slot.features;
  slot.batch.labels = slot.labels;
  slot.batch.feature_bytes = static_cast<size_t>(dataset_.feature_bytes());
  slot.batch.label_elements = static_cast<size_t>(dataset_.label_elements());
  slot.unknown = false;
  if (!options_.shortcut) return;
  slot.batch.shortcut = options_.shortcut->which(epoch);
  slot.batch.shortened = slot.shortened;
  if (slot.batch.shortcut > 0) slot.batch.shortened_bytes = options_.shortcut->bytes_of_row(slot.batch.shortcut);
}

void Loader::fill(Reader& reader, Slot& slot, RowRange rows) const {
  const bool shortened = slot.batch.shortcut > 0;
  if (shortened) fill_shortened(slot, rows);
  fill_plain(reader, slot, rows, options_.features && (!shortened || options_.shortcut->with_features),
             options_.labels);
}

void Loader::fill_shortened(Slot& slot, RowRange rows) const {
  const size_t bytes = slot.batch.shortened_bytes;
  for (int64_t row = rows.begin; row < rows.end && !slot.unknown; ++row) {
    const int64_t sample = slot.of_row[static_cast<size_t>(row)];
    const std::span<std::byte> out = slot.batch.shortened.subspan(static_cast<size_t>(row) * bytes, bytes);
    if (sample == kNoSample) {
      std::memset(out.data(), 0, bytes);
    } else if (!options_.shortcut->fetch(slot.batch.shortcut, sample, slot.batch.epoch, out)) {
      slot.unknown = true;
    }
  }
}

void Loader::fill_plain(Reader& reader, Slot& slot, RowRange rows, bool has_features, bool has_labels) const {
  const auto feature_bytes = static_cast<size_t>(dataset_.feature_bytes());
  const auto label_elements = static_cast<size_t>(dataset_.label_elements());
  auto begin = static_cast<size_t>(rows.begin);
  const auto end = static_cast<size_t>(rows.end);
  while (begin < end) {
    const bool has_samples = slot.of_row[begin] != kNoSample;
    size_t stop = begin + 1;
    while (stop < end && (slot.of_row[stop] != kNoSample) == has_samples) ++stop;
    const size_t count = stop - begin;
    std::byte* features = has_features ? slot.features.data() + begin * feature_bytes : nullptr;
    int32_t* labels = has_labels ? slot.labels.data() + begin * label_elements : nullptr;
    if (has_samples) {
      reader.fill(std::span<const int64_t>(slot.of_row).subspan(begin, count), slot.batch.epoch, features, labels);
    } else {
      if (features) std::memset(features, 0, count * feature_bytes);
      if (labels) std::fill_n(labels, count * label_elements, kNoLabel);
    }
    begin = stop;
  }
}

}  // namespace millrace::data
