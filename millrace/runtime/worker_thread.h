// A thread that a worker's work is done on, all of it: libraries keep settings and pools per thread, so what is
// prepared on a thread must run on it.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

namespace millrace::runtime {

class WorkerThread {
 public:
  WorkerThread() : thread_([this] { serve(); }) {}
  ~WorkerThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // What the call throws comes out of the future.
  std::future<void> call(std::function<void()> work) {
    std::packaged_task<void()> task(std::move(work));
    std::future<void> done = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push(std::move(task));
    }
    changed_.notify_one();
    return done;
  }

 private:
  void serve() {
    for (;;) {
      std::packaged_task<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::packaged_task<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace millrace::runtime
