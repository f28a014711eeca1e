// Reading buffers back from the GPU: by the worker in the order of its tasks, or beside it through a stream of its own.
//
// Nothing here may disturb a worker that computes, or records its tasks, at the same time: no stream but the own one is
// touched, nothing is allocated after the start, and what comes to the host comes into pinned memory, since a copy to
// any other would hold the driver.
#pragma once

#include <span>

#include "millrace/backend/cuda/layout.h"

namespace millrace::backend::cuda {

// Returns when it is done. `from` is the buffer as it is stored.
void read_back(const Device& device, const Staging& staging, const graph::Program& program, graph::BufferId id,
               const void* from, std::span<float> plain);

class CudaOutlet final : public Outlet {
 public:
  // `tasks`: what the worker's tasks run on. To be made on its thread.
  CudaOutlet(Backend& backend, const Device& tasks, int device);
  ~CudaOutlet() override;

  void copy(void* to, const void* from, size_t bytes) override;
  void follow() override;
  void download(const graph::Graph& graph, const graph::Program& program, graph::BufferId id, const void* from,
                std::span<float> plain) override;
  void fetch(void* host, const void* device, size_t bytes) override;
  double copy_s() override;

 private:
  void release();

  const Device tasks_;
  const int device_;
  Device own_;
  Landing landing_;
  Staging staging_;
  cudaEvent_t copy_begins_ = nullptr, ready_ = nullptr;  // in the order of the tasks
  bool copies_ = false, copied_ = false;                 // since and before the last follow()
};

}  // namespace millrace::backend::cuda
