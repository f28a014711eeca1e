#include "millrace/backend/cuda/outlet.h"

#include <utility>
#include <vector>

#include "millrace/backend/cuda/cells.h"
#include "millrace/backend/cuda/row_pitch.h"
#include "millrace/base/error.h"

namespace millrace::backend::cuda {

void read_back(const Device& device, const Staging& staging, const graph::Program& program, graph::BufferId id,
               const void* from, std::span<float> plain) {
  if (id == program.features) fail_run("images cannot be read back from a GPU");
  if (has_small_cells(program, id)) {
    std::vector<uint8_t> cells(static_cast<size_t>(stored_elements(program, id)) / 2);
    MILLRACE_CUDA(cudaMemcpyAsync(cells.data(), from, cells.size(), cudaMemcpyDeviceToHost, device.stream));
    MILLRACE_CUDA(cudaStreamSynchronize(device.stream));
    return unpack_cells(program.buffers[id], cells, plain);
  }
  get_plain(device, staging, program.buffers[id], row_pitch(program, id), from, plain.data());
}

CudaOutlet::CudaOutlet(Backend& backend, const Device& tasks, int device)
    : Outlet(backend), tasks_(tasks), device_(device) {
  own_.multiprocessors = tasks.multiprocessors;
  try {
    MILLRACE_CUDA(cudaStreamCreateWithFlags(&own_.stream, cudaStreamNonBlocking));
    MILLRACE_CUDA(cudaEventCreate(&copy_begins_));
    MILLRACE_CUDA(cudaEventCreate(&ready_));
    staging_.bytes = kStagingBytes;
    MILLRACE_CUDA(cudaMalloc(&staging_.memory, kStagingBytes));
    staging_.landing = &landing_;
    for (size_t i = 0; i < landing_.memory.size(); ++i) {
      // A thread that waits for a copy leaves its core to others.
      MILLRACE_CUDA(cudaEventCreateWithFlags(&landing_.filled[i], cudaEventBlockingSync | cudaEventDisableTiming));
      if (cudaHostAlloc(&landing_.memory[i], kStagingBytes, cudaHostAllocDefault) == cudaSuccess) continue;
      cudaGetLastError();  // where the system allows no more such memory, all else is the same
      staging_.landing = nullptr;
    }
  } catch (...) {
    release();
    throw;
  }
}

CudaOutlet::~CudaOutlet() {
  cudaSetDevice(device_);
  release();
}

void CudaOutlet::release() {
  for (size_t i = 0; i < landing_.memory.size(); ++i) {
    if (landing_.memory[i]) cudaFreeHost(landing_.memory[i]);
    if (landing_.filled[i]) cudaEventDestroy(landing_.filled[i]);
  }
  if (staging_.memory) cudaFree(staging_.memory);
  if (ready_) cudaEventDestroy(ready_);
  if (copy_begins_) cudaEventDestroy(copy_begins_);
  if (own_.stream) cudaStreamDestroy(own_.stream);
}

void CudaOutlet::copy(void* to, const void* from, size_t bytes) {
  if (!copies_) MILLRACE_CUDA(cudaEventRecord(copy_begins_, tasks_.stream));
  copies_ = true;
  MILLRACE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, tasks_.stream));
}

void CudaOutlet::follow() {
  MILLRACE_CUDA(cudaEventRecord(ready_, tasks_.stream));
  MILLRACE_CUDA(cudaStreamWaitEvent(own_.stream, ready_, 0));
  copied_ = std::exchange(copies_, false);
}

void CudaOutlet::download(const graph::Graph&, const graph::Program& program, graph::BufferId id, const void* from,
                          std::span<float> plain) {
  MILLRACE_CUDA(cudaSetDevice(device_));  // every thread has one of its own
  read_back(own_, staging_, program, id, from, plain);
}

void CudaOutlet::fetch(void* host, const void* device, size_t bytes) {
  MILLRACE_CUDA(cudaSetDevice(device_));
  MILLRACE_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, own_.stream));
  MILLRACE_CUDA(cudaStreamSynchronize(own_.stream));
}

double CudaOutlet::copy_s() {
  if (!copied_) return 0;
  float ms = 0;
  MILLRACE_CUDA(cudaEventElapsedTime(&ms, copy_begins_, ready_));
  return static_cast<double>(ms) * 1e-3;
}

}  // namespace millrace::backend::cuda
