#include "millrace/backend/cpu/chooser.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
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
    madvise(data_, bytes_, MADV_HUGEPAGE);  // as an arena's memory is
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

// A candidate ready to run.
struct Trial {
  Trial(const Kernel& kernel, Bindings bindings) : scratch(kernel.scratch_bytes) {
    bindings.scratch = scratch.data();
    task = kernel.bind(bindings);
  }
  TrialMemory scratch;
  Task task;
  double seconds = std::numeric_limits<double>::infinity();
};

// The best of a warm-up and of several rounds. Candidates take turns, so that a machine that is slow for a while is so
// for all of them; one clearly slower than the best at its first run has no second.
size_t fastest_of(const std::vector<Kernel>& candidates, const Bindings& bindings) {
  constexpr int kRounds = 4;
  std::vector<std::unique_ptr<Trial>> trials;
  double best = std::numeric_limits<double>::infinity();
  const auto run = [&](Trial& trial) {
    trial.seconds = std::min(trial.seconds, run_seconds(trial.task));
    best = std::min(best, trial.seconds);
  };
  for (const Kernel& candidate : candidates) run(*trials.emplace_back(std::make_unique<Trial>(candidate, bindings)));
  std::vector<size_t> close;
  for (size_t i = 0; i < trials.size(); ++i) {
    if (trials[i]->seconds <= 1.5 * best) close.push_back(i);
  }
  for (int round = 0; round < kRounds && close.size() > 1; ++round) {
    for (size_t i : close) run(*trials[i]);
  }
  return *std::min_element(close.begin(), close.end(),
                           [&](size_t a, size_t b) { return trials[a]->seconds < trials[b]->seconds; });
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
  const size_t fastest = fastest_of(candidates, bindings);
  choices_.remember(question, candidates[fastest].algorithm);
  return std::move(candidates[fastest]);
}

}  // namespace millrace::backend::cpu
