// The training after the one that runs, made by all processes beside it: process 0 has it planned and tells the others,
// and each makes its workers. What is left for the boundary is the state.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "millrace/comm/process.h"
#include "millrace/runtime/prefix_cache.h"
#include "millrace/runtime/training.h"

namespace millrace::runtime {

// The job of the next training, and what is expected of it.
struct NextPlan {
  job::Job job;
  std::string words;               // "1f1b, 4 micro-batches, stages on 0:0 | 0:1"
  double predicted_step_s = 0;     // 0: nothing was predicted; with elastic.cache, of a cache that is full
  double predicted_filling_s = 0;  // with elastic.cache: of the first epoch, which fills it
  double predicted_before_s = 0;   // of the plan there is, with the same layers frozen
};

class NextTraining {
 public:
  struct Made {
    job::Job job;
    std::unique_ptr<Training> training;
  };

  // From when the training before it begins, on all processes. `process` is not that training's; one that was on it
  // before is gone when `former` is there.
  NextTraining(comm::Process& process, const MachineLimit& limit, std::shared_ptr<PrefixCaches> caches,
               std::shared_future<void> former, bool uses_devices);
  ~NextTraining();
  NextTraining(const NextTraining&) = delete;
  NextTraining& operator=(const NextTraining&) = delete;

  // On process 0: it is to go on at step `boundary`, with what the caches keep from there on.
  void begin(std::shared_future<NextPlan> plan, int64_t boundary, std::shared_ptr<const PrefixCache> cache);
  // On process 0, at the boundary: waits until it is there. Throws std::invalid_argument where it cannot be; another
  // may be begun.
  void await();
  // Whether both are there at the boundary. If not, take() makes it: the one before is to be gone by then.
  bool is_beside() const { return beside_; }
  // On all processes, at the boundary.
  Made take();

 private:
  Made lead(const std::shared_future<NextPlan>& plan, int64_t boundary, std::shared_ptr<const PrefixCache> cache);
  Made follow();
  Made make(const job::Job& job, std::shared_ptr<const PrefixCache> cache);
  void stop();
  std::launch when() const { return beside_ ? std::launch::async : std::launch::deferred; }

  comm::Process& process_;
  const MachineLimit limit_;
  const std::shared_ptr<PrefixCaches> caches_;
  const std::shared_future<void> former_;
  const bool beside_;
  std::shared_future<NextPlan> plan_;
  std::future<Made> future_;
  Made made_;
  bool taken_ = false;
};

}  // namespace millrace::runtime
