// What actions wait for across lists. Workers meet in events: a message passes once it is sent and its buffer is open
// at the other end; a bucket is summed once every replica has offered its gradients; an update is agreed on once every
// replica of every stage has its gradients. An action signals events, others
// wait until they have happened. The prover asks whether all can happen, the simulator when they do.
#pragma once

#include <vector>

#include "millrace/schedule/messages.h"

namespace millrace::schedule {

// A bucket of a stage's gradients in one update.
struct Sum {
  int stage = 0;
  int update = 0;
  int bucket = 0;
};

struct Event {
  int message = -1;  // in Waits::messages; -1: a sum, or agreement where the sum has no stage
  Sum sum;
  int signals = 0;  // that it takes
};

class Waits {
 public:
  // Lists without messages wait for the compute actions that their messages would come from.
  explicit Waits(const Schedule& schedule);

  const MessageList& messages() const { return messages_; }
  const std::vector<Event>& events() const { return events_; }
  const std::vector<int>& signals(int worker, size_t action) const { return signals_[worker][action]; }
  const std::vector<int>& waits(int worker, size_t action) const { return waits_[worker][action]; }
  bool compute_only() const { return compute_only_; }

 private:
  void add_compute_list(const std::vector<Action>& list, int worker);
  void add_lowered_list(const std::vector<Action>& list, int worker);
  int sum_event(const Action& action) const;
  bool ends_update(const Action& step) const;

  const Schedule& schedule_;
  const MessageList messages_;
  bool compute_only_ = true;
  std::vector<Event> events_;   // messages first, at their own numbers
  std::vector<int> first_sum_;  // event of each stage's first bucket; -1: not replicated
  int first_agreement_ = -1;    // event of the first update; -1: nothing is agreed on
  std::vector<std::vector<std::vector<int>>> signals_, waits_;
};

// Updates of a stage that the lists contain.
int updates_in(const Schedule& schedule, int stage);

}  // namespace millrace::schedule
