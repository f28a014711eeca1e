// Work in an order of its own, on a thread of its own: what a GPU calls a stream. It is late at random, as a device is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace millrace::device {

// A point in the order of a stream, once it was recorded there.
class Event {
 public:
  using Clock = std::chrono::steady_clock;

  void pass() {
    {
      const std::lock_guard lock(mutex_);
      passed_ = true;
      at_ = Clock::now();
    }
    changed_.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
  }
  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  Clock::time_point at() {
    const std::lock_guard lock(mutex_);
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  Clock::time_point at_{};
};
using EventPtr = std::shared_ptr<Event>;

class Stream {
 public:
  explicit Stream(uint64_t seed) : random_(seed * 2 + 1), thread_([this] { work(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void call(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  EventPtr record() {
    auto event = std::make_shared<Event>();
    call([event] { event->pass(); });
    return event;
  }
  void follow(const EventPtr& event) {
    call([event] { event->await(); });
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }
  // What went wrong is told to everyone who waits from then on.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
    if (failure_) std::rethrow_exception(failure_);
  }
  void wait_for(const EventPtr& event) {
    event->await();
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> next = queue_.front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        dawdle();
        next();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (!failure_) failure_ = failure;
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  void dawdle() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    if ((random_ >> 60) == 0) std::this_thread::sleep_for(std::chrono::microseconds((random_ >> 50) & 0xff));
  }

  uint64_t random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // what is being done stands in front
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace millrace::device
