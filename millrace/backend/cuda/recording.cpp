#include "millrace/backend/cuda/recording.h"

namespace millrace::backend::cuda {
namespace {

class Recording {
 public:
  explicit Recording(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&run_, graph, 0);
    cudaGraphDestroy(graph);
    MILLRACE_CUDA(status);
  }
  ~Recording() { cudaGraphExecDestroy(run_); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  cudaGraphExec_t get() const { return run_; }
  const Launch& last() const { return last_; }

 private:
  cudaGraphExec_t run_ = nullptr;
  const Launch last_ = last_launch;  // that was recorded
};

}  // namespace

std::mutex& device_wait_mutex() {
  static std::mutex mutex;
  return mutex;
}

void Recorder::begin() {
  lock_ = std::unique_lock(device_wait_mutex());
  MILLRACE_CUDA(cudaStreamBeginCapture(device_.stream, cudaStreamCaptureModeThreadLocal));
}

std::shared_ptr<const void> Recorder::end() {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(device_.stream, &graph);
  lock_ = {};
  if (status == cudaErrorStreamCaptureInvalidated) {
    cudaGetLastError();
    return nullptr;
  }
  MILLRACE_CUDA(status);
  return std::make_shared<Recording>(graph);
}

void Recorder::play(const void* recording) const {
  const auto* played = static_cast<const Recording*>(recording);
  MILLRACE_CUDA(cudaGraphLaunch(played->get(), device_.stream));
  last_launch = played->last();
}

}  // namespace millrace::backend::cuda
