// Measuring kernels for the same work against each other, on memory of their own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

// Device memory that is given back at the end.
class TrialMemory {
 public:
  explicit TrialMemory(size_t bytes);
  ~TrialMemory() { cudaFree(memory_); }
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

// Seconds of one run: the best of a few after a warm-up. Gives up early on one that is clearly slower than `best_s`.
// Infinite where a run fails.
double trial_seconds(const Device& device, double best_s, const std::function<void()>& run);

}  // namespace millrace::backend::cuda
