#include "millrace/runtime/device.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/reference/reference_backend.h"
#include "millrace/job/text.h"

namespace millrace::runtime {
namespace {

// "amd-epyc": the processor's name fit for a file name.
std::string processor_file_name() {
  std::string name;
  for (char c : processor_name()) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return name;
}

// Measured choices hold for a processor and a number of threads; a home directory may serve several machines.
std::string choices_file(int threads) {
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
  return folder / "millrace" / ("kernels-" + processor_file_name() + "-" + std::to_string(threads) + "-threads.json");
}

backend::SgdOptions sgd_options(const job::Optimizer& optimizer) {
  return {.momentum = static_cast<float>(optimizer.momentum),
          .nesterov = optimizer.nesterov,
          .weight_decay = static_cast<float>(optimizer.weight_decay),
          .decoupled = optimizer.decoupled,
          .decay_bias = optimizer.decay_bias,
          .decay_norm = optimizer.decay_norm};
}

}  // namespace

int thread_count(const job::Job& job, int workers_on_host) {
  if (job.threads > 0) return job.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / workers_on_host);
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
  return processor_name() + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

std::unique_ptr<backend::Backend> make_backend(const job::Job& job, int threads, const OnMeasure& on_measure) {
  const backend::SgdOptions sgd = sgd_options(job.optimizer);
  if (job.device == job::Device::Reference) return backend::make_reference_backend(sgd);
  backend::CpuOptions options;
  options.threads = threads;
  options.convolution =
      job.backend.winograd == job::Winograd::Auto ? backend::Convolution::Auto : backend::Convolution::Direct;
  if (job.backend.remember) options.choices_file = choices_file(options.threads);
  options.on_measure = on_measure;
  return backend::make_cpu_backend(options, sgd);
}

}  // namespace millrace::runtime
