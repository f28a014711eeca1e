// Runs on a GPU, or on the device that stands in for one where there is none (tests/device).
#pragma once

#include <vector>

#include "runtime/training_harness.h"

namespace millrace::runtime {

// Of those, what the device computes in.
inline std::vector<job::Precision> precisions(const std::vector<job::Precision>& wanted) {
  return device::is_emulated() ? std::vector{job::Precision::Fp32} : wanted;
}

inline job::Job cuda_job(job::Precision precision = job::Precision::Fp32) {
  job::Job job = small_job();
  job.device = job::Device::Cuda;
  job.precision = precision;
  job.deterministic = true;
  job.data.train_samples = 32;
  return job;
}

inline job::Job on_two(job::Job job, job::Mode mode, int microbatches = 1) {
  job.parallel.mode = mode;
  job.parallel.placement = mode == job::Mode::Dp ? "0:0-1" : "0:0.0:1";
  job.parallel.microbatches = microbatches;
  return job;
}

inline job::Job on_one(job::Job job) {
  job.parallel.mode = job::Mode::Dp;
  job.parallel.placement = "0:0";
  return job;
}

}  // namespace millrace::runtime
