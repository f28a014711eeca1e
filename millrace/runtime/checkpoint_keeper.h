// The checkpoints of a run, as process 0 sees them: when one is due, which parts are still to come, what is kept. One
// is under way at a time; what fails is said, and training goes on.
#pragma once

#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "millrace/comm/process.h"
#include "millrace/runtime/observer.h"
#include "millrace/runtime/worker.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::runtime {

class CheckpointKeeper {
 public:
  CheckpointKeeper(const RunFacts& facts, const Observer& observer, std::vector<int> savers);
  ~CheckpointKeeper();

  bool keeps() const { return !observer_.checkpoints.empty(); }
  bool due_by_time() const;
  bool is_saving() const { return saving_.has_value(); }

  // Makes a place for the parts; false if none is to be written now.
  bool begin(int64_t step, int64_t samples, bool is_best, bool evaluation_due);
  void take(const comm::Event& saved);
  void look_after();  // often: what is done in the background may be done

  bool take_evaluation(const Metrics& metrics);  // whether it is better than the best that is kept

  int64_t newest() const { return newest_; }  // step of the newest whole checkpoint; -1: none
  std::optional<state::Manifest> newest_before(int64_t step) const;
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Saving {
    state::Manifest manifest;
    bool is_best = false;
    std::set<int> waiting;  // workers whose part is still to come
    std::string failure;
    std::future<std::string> finishing;  // what went wrong; empty: nothing
  };
  std::string finish(const Saving& saving);
  std::optional<double> judged_figure(const state::Manifest& manifest) const;
  void fail(int64_t step, const std::string& why);

  const RunFacts& facts_;
  const Observer& observer_;
  const std::vector<int> savers_;
  state::CheckpointStore store_;
  std::optional<Saving> saving_;
  int64_t newest_ = -1;
  Clock::time_point last_begin_;
  std::optional<double> best_;             // the figure of the best that is kept
  std::map<std::string, double> figures_;  // of the last evaluation
  std::vector<std::string> failures_;
};

}  // namespace millrace::runtime
