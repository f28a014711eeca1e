// What the commands measure of the process and the machine.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/job/job.h"
#include "millrace/report/process_memory.h"
#include "millrace/report/summary.h"
#include "millrace/runtime/training.h"

namespace millrace::cli {

// The memory of the process from its making on, or that of the first GPU: the baseline is taken before anything is
// planned.
class MemoryMeter {
 public:
  explicit MemoryMeter(const job::Job& job) : on_gpu_(job.device == job::Device::Cuda) {
    report::reset_peak_memory();
    baseline_bytes_ = used();
  }

  report::PeakBytes peak(const runtime::Training& training) const {
    const int64_t now = used();
    return {static_cast<int64_t>(training.planned_bytes()), now - baseline_bytes_, now};
  }

 private:
  int64_t used() const {
    if (!on_gpu_)
      return baseline_bytes_ == 0 ? report::process_memory().resident_bytes : report::process_memory().peak_bytes;
    const backend::CudaMemory memory = backend::cuda_memory(0);
    return static_cast<int64_t>(memory.total_bytes - memory.free_bytes);
  }

  bool on_gpu_ = false;
  int64_t baseline_bytes_ = 0;
};

// Says once, on standard error, that a first run takes longer to start.
inline runtime::OnMeasure announce_measuring() {
  return [said = std::make_shared<bool>(false)](const std::string&) {
    if (!*said) fmt::print(stderr, "measuring kernels for this machine (kept for later runs) ...\n");
    *said = true;
  };
}

// What may be planned: of the host's memory, or of a GPU's.
inline runtime::MachineLimit machine_limit(const job::Job& job) {
  if (job.device != job::Device::Cuda) return {static_cast<size_t>(report::available_memory()), "this machine"};
  if (backend::cuda_device_count() == 0) return {};  // said when the backend is made
  return {backend::cuda_memory(0).free_bytes, backend::cuda_device_name(0)};
}

}  // namespace millrace::cli
