// Finds the CUDA backend beside the program and loads it at its first use.
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "millrace/backend/cuda_library.h"
#include "millrace/base/error.h"

namespace millrace::backend {
namespace {

struct Loaded {
  const CudaLibrary* library = nullptr;
  std::string failure;
};

Loaded load() {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path file = program.parent_path() / kCudaLibraryFile;
  if (!std::filesystem::exists(file)) {
    return {nullptr,
            "this build has no CUDA backend: install the CUDA toolkit 13 and cuDNN 9, with nvcc in PATH, build again, "
            "or write device: cpu"};
  }
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return {nullptr,
            fmt::format("{}; install cuDNN 9, cuBLAS 13 and, if it was built with it, NCCL 2, or write device: cpu",
                        dlerror())};
  const auto* library = static_cast<const CudaLibrary*>(dlsym(handle, kCudaLibrarySymbol));
  if (!library) return {nullptr, fmt::format("{} is not of this build; build again", file.string())};
  return {library, {}};
}

// Never unloaded: CUDA's own threads may outlive us.
const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

const CudaLibrary& library() {
  if (!loaded().library) fail_input("device: cuda: {}", loaded().failure);
  return *loaded().library;
}

void require_device() {
  if (library().device_count() == 0) fail_input("device: cuda: no NVIDIA GPU was found here; write device: cpu");
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options, const OptimizerOptions& sgd) {
  require_device();
  return library().make(options, sgd);
}

int cuda_device_count() { return loaded().library ? library().device_count() : 0; }

std::string cuda_device_name(int device) {
  require_device();
  return library().device_name(device);
}

CudaPeaks measure_cuda_peaks(int device, DType dtype, bool tf32) {
  require_device();
  return library().peaks(device, dtype, tf32);
}

CudaMemory cuda_memory(int device) {
  require_device();
  return library().memory(device);
}

}  // namespace millrace::backend
