// What process 0 wants of all workers, in order: the same list everywhere. While workers train, they may begin the
// steps that were granted, and grants come ahead of them; so that process 0 can end their list at the step up to which
// it has granted - nobody has gone past it, and nobody need be asked.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace millrace::comm {

struct Order {
  enum class Kind : int32_t {
    Train,     // from step `at` on, as far as is granted, at most to step `next`
    Pause,     // nothing but the end of a training before it
    Evaluate,  // at a boundary between steps, like the rest
    Save,      // take a snapshot and write it
    Watch,     // tell how large gradients were since the last time, and begin to sum them up anew
    Load,      // the state of the checkpoint of step `from`, to go on with step `next`
    End,
  };
  Kind kind = Kind::End;
  int64_t at = 0;  // the step before which it happens; where a training before it ends
  int64_t next = 0, from = 0;
};

// A process's copy of the orders. One thread adds, any number read.
class OrderBook {
 public:
  void add(const Order& order) {
    const std::lock_guard lock(mutex_);
    orders_.push_back(order);
    if (order.kind == Order::Kind::Train) granted_ = order.at;
    changed_.notify_all();
  }
  void grant(int64_t step) {
    const std::lock_guard lock(mutex_);
    granted_ = step;
    changed_.notify_all();
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

  // The number of the first order of the next training; the one before it ended with those before.
  size_t first() {
    const std::lock_guard lock(mutex_);
    return first_;
  }
  void ended_with(size_t index) {
    const std::lock_guard lock(mutex_);
    first_ = index + 1;
  }

  // How far a worker whose last order was number `index` may go: to the next order, or as far as is granted. Waits
  // until that is beyond `known` or known to be the end. False when aborted.
  struct Limit {
    int64_t step = 0;
    bool is_end = false;
  };
  bool await_limit(size_t index, int64_t known, Limit& limit) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || orders_.size() > index + 1 || granted_ > known; });
    if (aborted_) return false;
    limit.is_end = orders_.size() > index + 1 || granted_ == orders_[index].next;
    limit.step = orders_.size() > index + 1 ? orders_[index + 1].at : granted_;
    return true;
  }

  // The order of this number, once there is one. Nothing when aborted.
  std::optional<Order> await_order(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || orders_.size() > index; });
    if (aborted_) return std::nullopt;
    return orders_[index];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Order> orders_;
  size_t first_ = 0;
  int64_t granted_ = 0;
  bool aborted_ = false;
};

}  // namespace millrace::comm
