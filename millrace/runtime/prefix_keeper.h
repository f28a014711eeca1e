// Keeps what frozen layers make of a micro-batch while a device goes on: it copies it aside in the order of its tasks,
// and threads bring it to the host and store it row by row. One micro-batch is under way at a time; a worker that comes
// with the next one before that waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "millrace/backend/backend.h"

namespace millrace::runtime {

class PrefixKeeper {
 public:
  // Called from its threads.
  using Store = std::function<void(int64_t sample, std::span<const std::byte> row)>;

  // On the worker's thread.
  PrefixKeeper(backend::Backend& backend, size_t row_bytes, int64_t rows, Store store);
  ~PrefixKeeper();
  PrefixKeeper(const PrefixKeeper&) = delete;
  PrefixKeeper& operator=(const PrefixKeeper&) = delete;

  // From the worker's thread: the first rows of what the tasks called so far make there, a sample each. Returns the
  // seconds that the device had nothing to do because of it: as long as it has, the worker may wait.
  double keep(const std::byte* made, std::span<const int64_t> samples);
  // Returns when all is stored; rethrows what went wrong.
  void finish();

  size_t device_bytes() const { return host_.size(); }

 private:
  enum class Phase { Idle, Copied, Fetching, Storing };

  double await_place();
  void work();

  backend::Backend& backend_;
  const size_t row_bytes_;
  const Store store_;
  std::unique_ptr<backend::Outlet> outlet_;
  std::byte* aside_ = nullptr;  // on the device
  std::vector<std::byte> host_;
  std::vector<int64_t> samples_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::Idle;
  size_t next_row_ = 0, rows_left_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::runtime
