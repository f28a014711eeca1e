#include "millrace/backend/cuda/trial.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace millrace::backend::cuda {
namespace {

class Stopwatch {
 public:
  Stopwatch() {
    MILLRACE_CUDA(cudaEventCreate(&begin_));
    MILLRACE_CUDA(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  double seconds(cudaStream_t stream, const std::function<void()>& run, int times) const {
    MILLRACE_CUDA(cudaEventRecord(begin_, stream));
    for (int i = 0; i < times; ++i) run();
    MILLRACE_CUDA(cudaEventRecord(end_, stream));
    MILLRACE_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    MILLRACE_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e-3 / times;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

TrialMemory::TrialMemory(size_t bytes) { MILLRACE_CUDA(cudaMalloc(&memory_, std::max<size_t>(bytes, 256))); }

double trial_seconds(const Device& device, double best_s, const std::function<void()>& run) {
  const Stopwatch watch;
  try {
    run();  // loads the kernel
    double seconds = watch.seconds(device.stream, run, 1);
    if (seconds > 1.5 * best_s) return seconds;
    for (int repeat = 0; repeat < 3; ++repeat) seconds = std::min(seconds, watch.seconds(device.stream, run, 3));
    return seconds;
  } catch (const std::runtime_error&) {
    cudaGetLastError();
    return std::numeric_limits<double>::infinity();
  }
}

}  // namespace millrace::backend::cuda
