#include "millrace/backend/cpu/chooser.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
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

}  // namespace

Chooser::Chooser(std::string file, std::function<void(const std::string& work)> on_measure)
    : choices_(std::move(file)), on_measure_(std::move(on_measure)) {}

Kernel Chooser::choose(const std::string& work, std::vector<Kernel> candidates, const OperandBytes& bytes) {
  if (candidates.size() == 1) return std::move(candidates[0]);
  // A choice among others is another choice: one made with Winograd switched off must not replace one made with it.
  std::string question = work + " of";
  for (const Kernel& candidate : candidates) question += " " + candidate.algorithm;
  auto find_known = [&]() -> Kernel* {
    const std::optional<std::string> known = choices_.find(question);
    for (Kernel& candidate : candidates) {
      if (known && candidate.algorithm == *known) return &candidate;
    }
    return nullptr;
  };
  if (Kernel* known = find_known()) return std::move(*known);
  // Workers that prepare at the same time measure one after another, and the later ones take over what was chosen.
  const Choices::Lock lock(choices_);
  if (lock.held()) {
    choices_.read_file();
    if (Kernel* known = find_known()) return std::move(*known);
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
  choices_.remember(question, candidates[fastest].algorithm);
  return std::move(candidates[fastest]);
}

}  // namespace millrace::backend::cpu
