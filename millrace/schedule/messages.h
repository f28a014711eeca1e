// The messages that a pipeline's stages exchange, one by one: which rows of which micro-batch go from which worker to
// which. A message is known by its place in this list.
#pragma once

#include <vector>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

struct Message {
  int edge = 0;
  Direction direction = Direction::Activation;
  int microbatch = 0;
  int from = 0, to = 0;  // workers
  double share = 1;      // of the micro-batch's rows
};

// The stage at the end of an edge where values (or gradients) come from, and the one where they go.
int sending_stage(const Edge& edge, Direction direction);
int receiving_stage(const Edge& edge, Direction direction);

// The replica of the stage that the worker runs; -1: none.
int replica_on(const Pipeline& pipeline, int stage, int worker);

class MessageList {
 public:
  explicit MessageList(const Schedule& schedule);

  const std::vector<Message>& all() const { return all_; }
  // The message that a Post, Send or Receive of the worker is about; -1 when the pipeline needs no such message.
  int find(const Action& action, int worker) const;
  // What a compute action needs (or makes): messages on the edges that bring to (or take from) the worker.
  std::vector<int> entering(int stage, int worker, Direction direction, int microbatch) const;
  std::vector<int> leaving(int stage, int worker, Direction direction, int microbatch) const;

 private:
  size_t group(int edge, Direction direction, int microbatch) const;

  const Pipeline& pipeline_;
  int microbatches_ = 0;
  std::vector<Message> all_;
  std::vector<size_t> begin_;  // of each group of one edge, direction and micro-batch
};

}  // namespace millrace::schedule
