#include "millrace/runtime/device.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/backend/reference/reference_backend.h"
#include "millrace/job/text.h"

namespace millrace::runtime {
namespace {

// "amd-epyc": a device's name fit for a file name.
std::string file_name_of(const std::string& device) {
  std::string name;
  for (char c : device) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return name;
}

// Measured choices hold for a device; a home directory may serve several machines.
std::string choices_file(const std::string& device) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache && *cache) {
    folder = cache;
  } else if (home && *home) {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  return folder / "millrace" / ("kernels-" + file_name_of(device) + ".json");
}

backend::OptimizerOptions optimizer_options(const job::Optimizer& optimizer, const job::LossScale& scale) {
  return {.momentum = static_cast<float>(optimizer.momentum),
          .nesterov = optimizer.nesterov,
          .beta1 = static_cast<float>(optimizer.beta1),
          .beta2 = static_cast<float>(optimizer.beta2),
          .epsilon = static_cast<float>(optimizer.epsilon),
          .weight_decay = static_cast<float>(optimizer.weight_decay),
          .decoupled = optimizer.decoupled,
          .decay_bias = optimizer.decay_bias,
          .decay_norm = optimizer.decay_norm,
          .clip_norm = static_cast<float>(optimizer.clip_norm),
          .layer_decay = static_cast<float>(optimizer.layer_decay),
          .scale = {.factor = static_cast<float>(scale.factor),
                    .interval = scale.interval,
                    .floor = static_cast<float>(scale.floor)}};
}

}  // namespace

int thread_count(const job::Job& job, int workers_on_host) {
  if (job.threads > 0) return job.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / workers_on_host);
}

int loader_threads(const job::Job& job, int workers_on_host) {
  if (job.device != job::Device::Cuda) return 1;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / workers_on_host - 1);
}

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::string_view name = job::trimmed(std::string_view(line).substr(line.find(':') + 1));
    if (!name.empty()) return std::string(name);
  }
  return "cpu";
}

std::string device_name(const job::Job& job, int threads) {
  if (job.device == job::Device::Reference) return "reference";
  if (job.device == job::Device::Cuda) return backend::cuda_device_name(0);
  return processor_name() + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

std::unique_ptr<backend::Backend> make_backend(const job::Job& job, int threads, const OnMeasure& on_measure,
                                               int device) {
  const backend::OptimizerOptions optimizer = optimizer_options(job.optimizer, job.loss_scale);
  if (job.device == job::Device::Reference) return backend::make_reference_backend(optimizer);
  if (job.device == job::Device::Cuda) {
    backend::CudaOptions options;
    options.device = device % std::max(1, backend::cuda_device_count());  // workers may share a device
    options.tf32 = job.precision != job::Precision::Fp32;
    options.deterministic = job.deterministic;
    if (job.backend.remember) options.choices_file = choices_file(backend::cuda_device_name(options.device));
    options.on_measure = on_measure;
    return backend::make_cuda_backend(options, optimizer);
  }
  backend::CpuOptions options;
  options.threads = threads;
  options.convolution =
      job.backend.winograd == job::Winograd::Auto ? backend::Convolution::Auto : backend::Convolution::Direct;
  if (job.backend.remember) {
    options.choices_file = choices_file(processor_name() + "-" + std::to_string(threads) + "-threads");
  }
  options.on_measure = on_measure;
  return backend::make_cpu_backend(options, optimizer);
}

}  // namespace millrace::runtime
