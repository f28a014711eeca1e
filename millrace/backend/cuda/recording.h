// Tasks recorded as one CUDA graph.
#pragma once

#include <memory>
#include <mutex>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

// A recording is spoiled by whoever waits for the whole device meanwhile, on any thread, and the libraries do so where
// their handles are destroyed. Of the process, as what it guards is.
std::mutex& device_wait_mutex();

class Recorder {
 public:
  explicit Recorder(const Device& device) : device_(device) {}

  void begin();
  // Null where the recording was spoiled all the same: nothing was recorded.
  std::shared_ptr<const void> end();
  void play(const void* recording) const;

 private:
  const Device& device_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace millrace::backend::cuda
