// From compute actions to everything a worker does: when buffers open, messages leave and are awaited, gradients are
// summed over replicas and weights change.
#include <algorithm>
#include <map>
#include <utility>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {
namespace {

// Most micro-batches a replica holds at once, by its list.
std::vector<int> most_in_flight(const Schedule& schedule) {
  std::vector<int> most(schedule.pipeline.num_stages(), 1);
  if (!schedule.trains) return most;
  for (const auto& list : schedule.workers) {
    std::map<int, int> held;
    for (const Action& action : list) {
      if (action.kind == Kind::Forward) most[action.stage] = std::max(most[action.stage], ++held[action.stage]);
      if (action.kind == Kind::Backward || action.kind == Kind::WeightGrad) --held[action.stage];
    }
  }
  return most;
}

// Most micro-batches whose incoming gradient a replica still needs at once: one, unless weight gradients come later.
int most_gradients(const Schedule& schedule) {
  int most = 1;
  for (const auto& list : schedule.workers) {
    std::map<int, int> held;
    for (const Action& action : list) {
      if (action.kind == Kind::InputGrad) most = std::max(most, ++held[action.stage]);
      if (action.kind == Kind::WeightGrad) --held[action.stage];
    }
  }
  return most;
}

class Lowering {
 public:
  explicit Lowering(Schedule compute) : source_(std::move(compute)), pipeline_(source_.pipeline) {
    result_ = source_;
    const int spare = pipeline_.multi_buffer && pipeline_.num_stages() > 1 ? 1 : 0;
    if (!result_.slots.empty()) return;  // as another list of the same run has them
    result_.slots = most_in_flight(source_);
    for (int& slots : result_.slots) slots += spare;
    result_.gradient_slots = most_gradients(source_) + spare;
  }

  Schedule run() {
    for (int worker = 0; worker < pipeline_.num_workers; ++worker) lower_worker(worker);
    return std::move(result_);
  }

 private:
  struct Replica {
    int stage = 0;
    int index = 0;
    std::vector<int> microbatches;   // in the order of its forwards
    std::vector<int> pending_steps;  // updates whose gradients are on their way
    int last_update = -1;
  };

  int replica_on(int stage, int worker) const {
    const auto& workers = pipeline_.stages[stage];
    return static_cast<int>(std::find(workers.begin(), workers.end(), worker) - workers.begin());
  }

  // Workers of the other end that this replica exchanges rows of the micro-batch with.
  std::vector<int> peers(int stage, int replica, int other, int microbatch) const {
    std::vector<int> workers;
    const Rows mine = replica_rows(pipeline_.rows, replica, pipeline_.num_replicas(stage));
    for (int r = 0; r < pipeline_.num_replicas(other); ++r) {
      if (!takes(pipeline_, other, r, microbatch)) continue;
      const Rows theirs = replica_rows(pipeline_.rows, r, pipeline_.num_replicas(other));
      const bool overlap = mine.begin < theirs.end && theirs.begin < mine.end;
      if (pipeline_.replicas == job::Replicas::RoundRobin || overlap) workers.push_back(pipeline_.stages[other][r]);
    }
    return workers;
  }

  // The messages of one micro-batch on the edges that enter (or leave) a stage.
  void messages(Kind kind, Direction direction, const Replica& replica, int microbatch, bool entering) {
    for (int e = 0; e < static_cast<int>(pipeline_.edges.size()); ++e) {
      const Edge& edge = pipeline_.edges[e];
      if ((entering ? edge.to : edge.from) != replica.stage) continue;
      for (int peer : peers(replica.stage, replica.index, entering ? edge.from : edge.to, microbatch)) {
        Action action;
        action.kind = kind;
        action.direction = direction;
        action.stage = replica.stage;
        action.microbatch = microbatch;
        action.edge = e;
        action.peer = peer;
        out_->push_back(action);
      }
    }
  }
  void post_activation(const Replica& replica, size_t local) {
    if (local >= replica.microbatches.size()) return;
    messages(Kind::Post, Direction::Activation, replica, replica.microbatches[local], true);
  }
  void post_gradient(const Replica& replica, size_t local) {
    if (local >= replica.microbatches.size() || !source_.trains) return;
    messages(Kind::Post, Direction::Gradient, replica, replica.microbatches[local], false);
  }

  void lower_worker(int worker) {
    std::vector<Action>& out = result_.workers[worker];
    out.clear();
    out_ = &out;
    std::map<int, Replica> replicas;
    for (int s = 0; s < pipeline_.num_stages(); ++s) {
      const int index = replica_on(s, worker);
      if (index == pipeline_.num_replicas(s)) continue;
      Replica& replica = replicas[s];
      replica.stage = s;
      replica.index = index;
      for (const Action& action : source_.workers[worker]) {
        if (action.kind == Kind::Forward && action.stage == s) replica.microbatches.push_back(action.microbatch);
      }
      for (int l = 0; l < result_.slots[s]; ++l) post_activation(replica, l);
      for (int l = 0; l < result_.gradient_slots; ++l) post_gradient(replica, l);
    }
    for (const Action& action : source_.workers[worker]) lower_action(replicas.at(action.stage), action);
    for (auto& [stage, replica] : replicas) {
      if (!source_.trains) continue;
      finish_steps(replica);
      join_last_update(replica);
    }
  }

  void lower_action(Replica& replica, const Action& action) {
    const size_t local = static_cast<size_t>(local_place(replica, action.microbatch));
    switch (action.kind) {
      case Kind::Forward:
        finish_steps(replica);  // a forward may write statistics that are on their way with the gradients
        messages(Kind::Receive, Direction::Activation, replica, action.microbatch, true);
        out_->push_back(action);
        messages(Kind::Send, Direction::Activation, replica, action.microbatch, false);
        if (!source_.trains) post_activation(replica, local + result_.slots[replica.stage]);
        break;
      case Kind::Backward:
      case Kind::InputGrad:
        finish_steps(replica);  // the gradients it writes must not be on their way any more
        messages(Kind::Receive, Direction::Gradient, replica, action.microbatch, false);
        if (action.kind == Kind::Backward && completes_update(replica, action.microbatch)) {
          backward_and_reduce(replica, action);
        } else {
          out_->push_back(action);
        }
        messages(Kind::Send, Direction::Gradient, replica, action.microbatch, true);
        if (action.kind == Kind::Backward) after_backward(replica, action, local);
        break;
      case Kind::WeightGrad:
        out_->push_back(action);
        after_backward(replica, action, local);
        break;
      default: break;
    }
  }

  int local_place(const Replica& replica, int microbatch) const {
    return local_index(pipeline_, replica.stage, microbatch);
  }

  void after_backward(Replica& replica, const Action& action, size_t local) {
    post_gradient(replica, local + result_.gradient_slots);
    post_activation(replica, local + result_.slots[replica.stage]);
    if (!completes_update(replica, action.microbatch)) return;
    const int update = update_of(pipeline_, replica.stage, action.microbatch);
    replica.last_update = update;
    if (pipeline_.num_replicas(replica.stage) == 1) {
      out_->push_back(update_action(Kind::Step, replica, update, kWhole));
      return;
    }
    if (action.kind == Kind::WeightGrad) {
      for (int b = 0; b < pipeline_.buckets[replica.stage]; ++b) {
        out_->push_back(update_action(Kind::Reduce, replica, update, b));
      }
    }
    replica.pending_steps.push_back(update);
  }

  // Whether no other micro-batch of the same update comes later on this replica.
  bool completes_update(const Replica& replica, int microbatch) const {
    const size_t next = static_cast<size_t>(local_place(replica, microbatch)) + 1;
    if (next >= replica.microbatches.size()) return true;
    return update_of(pipeline_, replica.stage, replica.microbatches[next]) !=
           update_of(pipeline_, replica.stage, microbatch);
  }

  Action update_action(Kind kind, const Replica& replica, int update, int part) const {
    Action action;
    action.kind = kind;
    action.stage = replica.stage;
    action.microbatch = update;
    action.version = kind == Kind::Step ? update + 1 : 0;
    action.part = part;
    return action;
  }

  void backward_and_reduce(const Replica& replica, const Action& action) {
    if (pipeline_.num_replicas(replica.stage) == 1) {
      out_->push_back(action);
      return;
    }
    const int update = update_of(pipeline_, replica.stage, action.microbatch);
    for (int b = 0; b < pipeline_.buckets[replica.stage]; ++b) {
      Action part = action;
      part.part = b;
      out_->push_back(part);
      out_->push_back(update_action(Kind::Reduce, replica, update, b));
    }
  }

  void finish_steps(Replica& replica) {
    for (int update : replica.pending_steps) {
      for (int b = 0; b < pipeline_.buckets[replica.stage]; ++b) {
        out_->push_back(update_action(Kind::Step, replica, update, b));
      }
    }
    replica.pending_steps.clear();
  }

  // A replica that had no minibatch in the last update still takes part in its sum, with nothing.
  void join_last_update(Replica& replica) {
    if (source_.microbatches == 0) return;
    const int last = update_of(pipeline_, replica.stage, source_.microbatches - 1);
    if (replica.last_update >= last) return;
    for (int b = 0; b < pipeline_.buckets[replica.stage]; ++b) {
      out_->push_back(update_action(Kind::Reduce, replica, last, b));
    }
    replica.pending_steps.push_back(last);
    finish_steps(replica);
  }

  const Schedule source_;
  const Pipeline& pipeline_;
  Schedule result_;
  std::vector<Action>* out_ = nullptr;
};

}  // namespace

Schedule lower(Schedule compute) { return Lowering(std::move(compute)).run(); }

}  // namespace millrace::schedule
