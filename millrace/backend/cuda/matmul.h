// cuBLASLt for one worker: matrix products with what comes after them, the fastest algorithm for each measured.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

#include "millrace/backend/choices.h"
#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

// d (rows x columns) = a (rows x inner) b (inner x columns), all row-major, or transposed where it says so.
struct MatmulSpec {
  int64_t rows = 0, columns = 0, inner = 0;
  bool transposes_a = false, transposes_b = false;  // as stored: inner x rows, columns x inner
  DType dtype = DType::F32;                         // of all three
  bool bias = false, relu = false;                  // per column of d
  int64_t a_pitch = 0, d_pitch = 0;                 // from row to row, as stored; 0: rows follow each other
};

class Matmul {
 public:
  virtual ~Matmul() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual std::string name() const = 0;
  virtual void run(const void* a, const void* b, const void* bias, void* d, void* workspace) const = 0;
};

class MatmulLibrary {
 public:
  MatmulLibrary(const Device& device, const CudaOptions& options);
  ~MatmulLibrary() { cublasLtDestroy(handle_); }
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  // Throws where cuBLASLt cannot do it.
  std::shared_ptr<const Matmul> choose(const MatmulSpec& spec);

 private:
  const Device device_;
  const bool tf32_;
  Choices choices_;
  std::function<void(const std::string&)> on_measure_;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace millrace::backend::cuda
