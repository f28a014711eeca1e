// The CUDA backend: convolutions from cuDNN, matrix products from cuBLASLt, the memory-bound operators by hand. It
// lives in a shared library of its own that is loaded when a job first asks for a GPU, so that everything else runs
// where there is no CUDA, and does not wait for half a gigabyte of kernels where there is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "millrace/backend/optimizer.h"

namespace millrace::backend {

struct CudaOptions {
  int device = 0;
  bool tf32 = false;              // f32 products may round their factors to tf32
  bool deterministic = false;     // only algorithms that give the same bits every time
  std::string choices_file = {};  // measured choices are kept here between runs; empty: measured each time
  std::function<void(const std::string& work)> on_measure = {};  // called before candidates for `work` are measured
};

// Throws std::invalid_argument, saying what to install, where there is no CUDA or no GPU.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options, const OptimizerOptions& sgd);

// 0 where there is no CUDA or no GPU.
int cuda_device_count();
std::string cuda_device_name(int device);

struct CudaMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};
CudaMemory cuda_memory(int device);

// What the device reaches: bytes read and written by a large copy, operations of a large matrix product.
struct CudaPeaks {
  double bytes_per_s = 0;
  double flops_per_s = 0;
};
CudaPeaks measure_cuda_peaks(int device, DType dtype, bool tf32);

}  // namespace millrace::backend
