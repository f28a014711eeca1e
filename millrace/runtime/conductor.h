// What process 0 does while a job trains: it orders what all workers do next, grants steps ahead of them and puts
// together what they tell. It decides between steps only; within them workers are on their own.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "millrace/comm/process.h"
#include "millrace/runtime/checkpoint_keeper.h"
#include "millrace/runtime/observer.h"
#include "millrace/runtime/worker.h"

namespace millrace::runtime {

class Conductor {
 public:
  // `savers`: the workers that write a part of each checkpoint.
  Conductor(const RunFacts& facts, comm::Process& process, const Observer& observer, std::vector<int> savers);

  // To the last step, or to what ends the run before; the workers of all processes then have their last order.
  TrainingResult run();

 private:
  using Clock = std::chrono::steady_clock;
  using Kind = comm::Event::Kind;

  // The next step at which something happens that is known beforehand.
  struct Boundary {
    int64_t step = 0;
    bool evaluates = false;
    bool decides = false;
    bool saves = false;
  };
  Boundary next_boundary() const;
  std::optional<plan::Decision> next_decision() const;

  void train_to(int64_t end);
  void grant(int64_t end);
  void take_step(int64_t step);
  bool wants_to_end();
  bool has_diverged(double loss);
  bool roll_back();
  void decide();
  bool evaluate();  // whether it is the best so far
  void save(bool is_best);
  void await_save();
  std::vector<double> await_squares();
  Metrics await(Kind kind, int64_t number, int parts);
  void take_events(std::chrono::milliseconds wait);

  const RunFacts& facts_;
  comm::Process& process_;
  const Observer& observer_;
  const schedule::Pipeline& pipeline_;
  const int64_t align_;
  const int64_t least_lead_;  // steps that are granted ahead at least
  CheckpointKeeper keeper_;

  TrainingResult result_;
  int64_t position_ = 0;  // where the list that is running, or was last, begins or ended
  int64_t told_ = 0;      // steps before it were told of
  int64_t granted_ = 0;
  int64_t undecided_ = 0;  // decisions before this step have been taken
  int64_t samples_ = 0;
  bool evaluation_due_ = false;  // at the position
  bool diverged_ = false;
  std::deque<double> recent_losses_;
  Metrics stretch_;
  double mean_step_s_ = 0;

  // Parts come in any order and are added in the order of the workers.
  std::map<std::pair<Kind, int64_t>, std::map<int, Metrics>> gathered_;
  // When the last part of each was told, and of the one that was last awaited: by the clock of those who tell, so that
  // a slow watcher does not show.
  std::map<std::pair<Kind, int64_t>, Clock::time_point> told_at_;
  Clock::time_point latest_, since_;
};

// Minibatches after which every stage has finished whole updates.
int64_t updates_align(const schedule::Pipeline& pipeline);
// That an asynchronous mode runs before it drains, at most.
int64_t longest_list(const schedule::Pipeline& pipeline);

// Numbers of an event.
constexpr size_t kValuesOfEvent = 8;

// Metrics on their way to process 0.
std::array<double, kValuesOfEvent> to_values(const Metrics& metrics);
Metrics from_values(const std::array<double, kValuesOfEvent>& values);

}  // namespace millrace::runtime
