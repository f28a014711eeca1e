#include "millrace/runtime/prefix_keeper.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace millrace::runtime {
namespace {

constexpr size_t kRowsAtOnce = 4;

// Storing is copying and hashing, and first touches memory: one thread alone would hold up a fast device.
int num_threads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4); }

}  // namespace

PrefixKeeper::PrefixKeeper(backend::Backend& backend, size_t row_bytes, int64_t rows, Store store)
    : backend_(backend),
      row_bytes_(row_bytes),
      store_(std::move(store)),
      outlet_(backend.make_outlet()),
      host_(row_bytes * static_cast<size_t>(rows)) {
  samples_.reserve(static_cast<size_t>(rows));
  aside_ = static_cast<std::byte*>(backend.allocate(host_.size()));
  backend.pin(host_);
  for (int i = 0; i < num_threads(); ++i) threads_.emplace_back([this] { work(); });
}

PrefixKeeper::~PrefixKeeper() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return phase_ == Phase::Idle || failure_; });
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  backend_.unpin(host_);
  backend_.release(aside_, host_.size());
}

void PrefixKeeper::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ == Phase::Idle || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

double PrefixKeeper::keep(const std::byte* made, std::span<const int64_t> samples) {
  if (samples.empty()) return 0;
  const double idle_s = await_place();
  outlet_->copy(aside_, made, samples.size() * row_bytes_);
  outlet_->follow();
  {
    const std::lock_guard lock(mutex_);
    samples_.assign(samples.begin(), samples.end());
    next_row_ = 0;
    rows_left_ = samples_.size();
    phase_ = Phase::Copied;
  }
  changed_.notify_all();
  return idle_s;
}

double PrefixKeeper::await_place() {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> idle_since;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::microseconds(100), [&] { return phase_ == Phase::Idle || failure_; })) {
    if (!idle_since && backend_.idle()) idle_since = Clock::now();
  }
  if (failure_) std::rethrow_exception(failure_);
  return idle_since ? std::chrono::duration<double>(Clock::now() - *idle_since).count() : 0;
}

void PrefixKeeper::work() {
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      const auto has_rows = [&] { return phase_ == Phase::Storing && next_row_ < samples_.size(); };
      changed_.wait(lock, [&] { return stop_ || failure_ || phase_ == Phase::Copied || has_rows(); });
      if (stop_ || failure_) return;
      if (phase_ == Phase::Copied) {
        phase_ = Phase::Fetching;
        lock.unlock();
        outlet_->fetch(host_.data(), aside_, samples_.size() * row_bytes_);
        lock.lock();
        phase_ = Phase::Storing;
        changed_.notify_all();
        continue;
      }
      const size_t begin = next_row_, end = std::min(begin + kRowsAtOnce, samples_.size());
      next_row_ = end;
      lock.unlock();
      for (size_t row = begin; row < end; ++row) {
        store_(samples_[row], std::span<const std::byte>(host_).subspan(row * row_bytes_, row_bytes_));
      }
      lock.lock();
      rows_left_ -= end - begin;
      if (rows_left_ > 0) continue;
      phase_ = Phase::Idle;
      changed_.notify_all();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!failure_) failure_ = std::current_exception();
    changed_.notify_all();
  }
}

}  // namespace millrace::runtime
