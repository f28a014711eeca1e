#include "millrace/backend/cpu/chooser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace millrace::backend::cpu {
namespace {

// Memory for a trial, given back to the system afterwards so that it never adds to the run's peak.
class TrialMemory {
 public:
  explicit TrialMemory(size_t bytes) : bytes_(std::max<size_t>(bytes, 64)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    // Any ordinary number: zeros could be shared pages, and denormals are slow.
    std::memset(data_, 0x3c, bytes_);
  }
  ~TrialMemory() { munmap(data_, bytes_); }
  TrialMemory(const TrialMemory&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

// Holds the lock of the folder a file lies in; without a file, or where the folder cannot be made, it holds nothing.
class FileLock {
 public:
  explicit FileLock(const std::string& file) {
    if (file.empty()) return;
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ >= 0) flock(descriptor_, LOCK_EX);
  }
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

double run_seconds(const Task& task) {
  const auto start = std::chrono::steady_clock::now();
  task(StepContext{});
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Best of three after a warm-up; gives up early on one that is clearly slower than `best`.
double measure(const Kernel& kernel, Bindings bindings, double best) {
  const TrialMemory scratch(kernel.scratch_bytes);
  bindings.scratch = scratch.data();
  const Task task = kernel.bind(bindings);
  double seconds = run_seconds(task);
  if (seconds > 1.5 * best) return seconds;
  for (int repeat = 0; repeat < 3; ++repeat) seconds = std::min(seconds, run_seconds(task));
  return seconds;
}

std::map<std::string, std::string> read_choices(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) return {};
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> choices;
  if (!json.is_object()) return {};  // a damaged cache is measured again
  for (const auto& [work, algorithm] : json.items()) {
    if (algorithm.is_string()) choices[work] = algorithm.get<std::string>();
  }
  return choices;
}

}  // namespace

Chooser::Chooser(std::string file, std::function<void(const std::string& work)> on_measure)
    : file_(std::move(file)), on_measure_(std::move(on_measure)), chosen_(read_choices(file_)) {}

Kernel Chooser::choose(const std::string& work, std::vector<Kernel> candidates, const OperandBytes& bytes) {
  if (candidates.size() == 1) return std::move(candidates[0]);
  // A choice among others is another choice: one made with Winograd switched off must not replace one made with it.
  std::string question = work + " of";
  for (const Kernel& candidate : candidates) question += " " + candidate.algorithm;
  if (const auto known = chosen_.find(question); known != chosen_.end()) {
    for (Kernel& candidate : candidates) {
      if (candidate.algorithm == known->second) return std::move(candidate);
    }
  }
  // Workers that prepare at the same time measure one after another, and the later ones take over what was chosen: all
  // replicas must compute alike.
  const FileLock lock(file_);
  if (lock.held()) {
    chosen_.merge(read_choices(file_));
    if (const auto known = chosen_.find(question); known != chosen_.end()) {
      for (Kernel& candidate : candidates) {
        if (candidate.algorithm == known->second) return std::move(candidate);
      }
    }
  }
  if (on_measure_) on_measure_(work);
  std::vector<std::unique_ptr<TrialMemory>> memory;
  Bindings bindings;
  auto provide = [&](const std::vector<size_t>& sizes, std::vector<void*>& pointers) {
    for (size_t size : sizes) {
      memory.push_back(std::make_unique<TrialMemory>(size));
      pointers.push_back(memory.back()->data());
    }
  };
  provide(bytes.reads, bindings.reads);
  provide(bytes.writes, bindings.writes);
  double best = std::numeric_limits<double>::infinity();
  size_t fastest = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double seconds = measure(candidates[i], bindings, best);
    if (seconds < best) {
      best = seconds;
      fastest = i;
    }
  }
  remember(question, candidates[fastest].algorithm);
  return std::move(candidates[fastest]);
}

void Chooser::remember(const std::string& question, const std::string& algorithm) {
  chosen_[question] = algorithm;
  if (file_.empty()) return;
  // Another process may have written meanwhile: its choices stand, ours are added. A cache that cannot be
  // written is no reason to stop.
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), ignored);
  auto merged = read_choices(file_);
  merged.insert(chosen_.begin(), chosen_.end());
  const std::string temporary = fmt::format("{}.{}", file_, getpid());
  {
    std::ofstream stream(temporary);
    stream << nlohmann::json(merged).dump(1) << '\n';
    if (!stream) return;
  }
  std::filesystem::rename(temporary, file_, ignored);
}

}  // namespace millrace::backend::cpu
