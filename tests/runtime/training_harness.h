// A small job and ways to run it, for tests of many workers in one process.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/is_emulated.h"
#include "millrace/comm/process.h"
#include "millrace/runtime/training.h"

namespace millrace::runtime {

// Whether trainings of seconds may be run: with the CPU's kernels, optimised.
#ifdef NDEBUG
constexpr bool kFast = MILLRACE_HAS_CPU;
#else
constexpr bool kFast = false;
#endif

// On the reference backend, which needs no measuring and runs under every sanitizer; device_tests have its kernels on a
// device.
inline job::Job small_job() {
  job::Job job;
  job.name = "small";
  job.model = {.name = "alexnet_small", .classes = 10, .image_size = 17, .channels = 3, .dropout = 0.5};
  job.data = {.kind = job::DataKind::Generated, .train_samples = 26, .test_samples = 0, .noise = 0.5};
  job.batch = 8;
  job.steps = 6;
  job.threads = 1;
  job.seed = 5;
  job.device = device::is_emulated() ? job::Device::Cuda : job::Device::Reference;
  job.optimizer.lr = 0.05;
  job.optimizer.weight_decay = 1e-3;
  return job;
}

inline job::Model small_vit(int image_size, int width, int heads) {
  return {.name = "vit_b_16",
          .classes = 10,
          .image_size = image_size,
          .dropout = 0.1,
          .width = width,
          .layers = 2,
          .heads = heads,
          .mlp = width * 3 / 2,
          .patch = 8};
}

inline std::string straight(int stages) {
  std::string placement;
  for (int s = 0; s < stages; ++s) placement += fmt::format("{}0:{}", s > 0 ? "." : "", s);
  return placement;
}

struct RunResult {
  state::State state;
  TrainingResult result;
  std::vector<double> losses;
  std::map<int64_t, int> seen;  // how often each sample came
  std::vector<VersionUse> versions;
  size_t planned_bytes = 0;
};

inline RunResult run(const job::Job& job) {
  RunResult run;
  const auto process = comm::make_local_process();
  Training training(job, *process, {});
  run.planned_bytes = training.planned_bytes();
  for (size_t i = 0; i < training.num_workers(); ++i) training.worker(i).log_versions(10'000);
  Observer observer;
  std::mutex mutex;
  observer.on_step = [&](const StepReport& step) { run.losses.push_back(step.metrics.loss()); };
  observer.on_samples = [&](int64_t, std::span<const int64_t> samples) {
    const std::lock_guard lock(mutex);
    for (int64_t sample : samples) ++run.seen[sample];
  };
  run.result = training.run(observer);
  run.state = training.state();
  for (size_t i = 0; i < training.num_workers(); ++i) {
    const auto& uses = training.worker(i).versions();
    run.versions.insert(run.versions.end(), uses.begin(), uses.end());
  }
  return run;
}

// Largest difference of any parameter, relative to its norm.
inline double largest_difference(const state::State& a, const state::State& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a.params) {
    const auto& other = b.params.at(name).data;
    double difference = 0, norm = 1e-12;
    for (size_t i = 0; i < other.size(); ++i) {
      difference += std::pow(double{tensor.data[i]} - other[i], 2);
      norm += std::pow(double{other[i]}, 2);
    }
    largest = std::max(largest, std::sqrt(difference / norm));
  }
  return largest;
}

}  // namespace millrace::runtime
