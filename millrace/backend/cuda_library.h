// What the shared library with the CUDA backend offers: one table of functions behind one C name.
#pragma once

#include "millrace/backend/cuda/cuda_backend.h"

namespace millrace::backend {

struct CudaLibrary {
  std::unique_ptr<Backend> (*make)(const CudaOptions& options, const OptimizerOptions& sgd);
  int (*device_count)();
  std::string (*device_name)(int device);
  CudaMemory (*memory)(int device);
  CudaPeaks (*peaks)(int device, DType dtype, bool tf32);
};

constexpr const char* kCudaLibraryFile = "libmillrace_cuda.so";
constexpr const char* kCudaLibrarySymbol = "millrace_cuda_library";

}  // namespace millrace::backend
