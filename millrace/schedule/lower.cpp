// From compute actions to everything a worker does: when buffers open, messages leave and are awaited, gradients are
// summed over replicas and weights change.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "millrace/schedule/schedule.h"
#include "millrace/schedule/slots.h"

namespace millrace::schedule {
namespace {

// The order in which a replica's micro-batches use buffers of one kind.
class Turns {
 public:
  // Micro-batches in the order in which they begin; `slot_of` gives the buffer of each.
  template <typename SlotOf>
  Turns(const std::vector<int>& order, SlotOf slot_of) {
    std::map<int, int> last;  // micro-batch in each buffer
    for (const int m : order) {
      const auto [place, is_first] = last.try_emplace(slot_of(m), m);
      if (is_first) {
        first_.push_back(m);
      } else {
        next_[std::exchange(place->second, m)] = m;
      }
    }
  }
  Turns() = default;

  const std::vector<int>& first() const { return first_; }
  // Who has the buffer after the micro-batch; -1: nobody.
  int after(int microbatch) const {
    const auto found = next_.find(microbatch);
    return found == next_.end() ? -1 : found->second;
  }

 private:
  std::vector<int> first_;
  std::map<int, int> next_;
};

constexpr int kAllUpdates = std::numeric_limits<int>::max();

class Lowering {
 public:
  explicit Lowering(Schedule compute) : source_(std::move(compute)), pipeline_(source_.pipeline) {
    result_ = source_;
    const int spare = pipeline_.multi_buffer && pipeline_.num_stages() > 1 ? 1 : 0;
    if (!result_.slots.empty()) return;  // as another list of the same run has them
    SlotCounts counts = count_slots(source_, spare);
    result_.slots = std::move(counts.activations);
    result_.gradient_slots = counts.gradients;
  }

  Schedule run() {
    for (int worker = 0; worker < pipeline_.num_workers; ++worker) lower_worker(worker);
    return std::move(result_);
  }

 private:
  struct Replica {
    int stage = 0;
    int index = 0;
    Turns activations, gradients;    // in the order of its forwards and backwards
    std::map<int, int> completing;   // the micro-batch whose backward ends each update
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
    const Rows mine = replica_rows(pipeline_, stage, replica);
    for (int r = 0; r < pipeline_.num_replicas(other); ++r) {
      if (!takes(pipeline_, other, r, microbatch)) continue;
      const Rows theirs = replica_rows(pipeline_, other, r);
      if (mine.begin < theirs.end && theirs.begin < mine.end) workers.push_back(pipeline_.stages[other][r]);
    }
    return workers;
  }

  // The messages of one micro-batch on the edges that enter (or leave) a stage.
  void messages(Kind kind, Direction direction, const Replica& replica, int microbatch, bool entering) {
    for (int e = 0; e < static_cast<int>(pipeline_.edges.size()); ++e) {
      const Edge& edge = pipeline_.edges[e];
      if ((entering ? edge.to : edge.from) != replica.stage) continue;
      if (direction == Direction::Gradient && !pipeline_.learns(edge.from)) continue;
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
  void post_activation(const Replica& replica, int microbatch) {
    if (microbatch >= 0) messages(Kind::Post, Direction::Activation, replica, microbatch, true);
  }
  void post_gradient(const Replica& replica, int microbatch) {
    if (microbatch >= 0) messages(Kind::Post, Direction::Gradient, replica, microbatch, false);
  }

  Replica make_replica(int stage, int index, int worker) const {
    Replica replica;
    replica.stage = stage;
    replica.index = index;
    std::vector<int> forwards, backwards;
    for (const Action& action : source_.workers[worker]) {
      if (action.stage != stage) continue;
      if (action.kind == Kind::Forward) forwards.push_back(action.microbatch);
      if (action.kind == Kind::Backward || action.kind == Kind::InputGrad) backwards.push_back(action.microbatch);
      if (action.kind == Kind::Backward || action.kind == Kind::WeightGrad) {
        replica.completing[update_of(pipeline_, stage, action.microbatch)] = action.microbatch;
      }
    }
    const auto slot_of = [&](int slots) {
      return [this, stage, slots](int m) { return local_index(pipeline_, stage, m) % slots; };
    };
    replica.activations = Turns(forwards, slot_of(result_.slots[stage]));
    replica.gradients = Turns(backwards, slot_of(result_.gradient_slots));
    return replica;
  }

  void lower_worker(int worker) {
    std::vector<Action>& out = result_.workers[worker];
    out.clear();
    out_ = &out;
    std::map<int, Replica> replicas;
    for (int s = 0; s < pipeline_.num_stages(); ++s) {
      const int index = replica_on(s, worker);
      if (index == pipeline_.num_replicas(s)) continue;
      Replica& replica = replicas[s] = make_replica(s, index, worker);
      for (const int m : replica.activations.first()) post_activation(replica, m);
      for (const int m : replica.gradients.first()) post_gradient(replica, m);
    }
    for (const Action& action : source_.workers[worker]) lower_action(replicas.at(action.stage), action);
    for (auto& [stage, replica] : replicas) {
      if (!source_.trains_on(stage)) continue;
      finish_steps(replica);
      join_last_update(replica);
    }
  }

  void lower_action(Replica& replica, const Action& action) {
    switch (action.kind) {
      case Kind::Forward:
        // Statistics may be on their way with the gradients; else only what the forward reads must be there.
        finish_steps(replica,
                     pipeline_.has_statistics(replica.stage) || !source_.trains ? kAllUpdates : action.version);
        messages(Kind::Receive, Direction::Activation, replica, action.microbatch, true);
        out_->push_back(action);
        messages(Kind::Send, Direction::Activation, replica, action.microbatch, false);
        if (!source_.trains_on(replica.stage)) post_activation(replica, replica.activations.after(action.microbatch));
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
        if (action.kind == Kind::Backward) after_backward(replica, action);
        break;
      case Kind::WeightGrad:
        out_->push_back(action);
        after_backward(replica, action);
        break;
      default: break;
    }
  }

  void after_backward(Replica& replica, const Action& action) {
    post_gradient(replica, replica.gradients.after(action.microbatch));
    post_activation(replica, replica.activations.after(action.microbatch));
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
    return replica.completing.at(update_of(pipeline_, replica.stage, microbatch)) == microbatch;
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

  // Steps to the versions up to `version`.
  void finish_steps(Replica& replica, int version = kAllUpdates) {
    auto pending = replica.pending_steps.begin();
    for (; pending != replica.pending_steps.end() && *pending < version; ++pending) {
      for (int b = 0; b < pipeline_.buckets[replica.stage]; ++b) {
        out_->push_back(update_action(Kind::Step, replica, *pending, b));
      }
    }
    replica.pending_steps.erase(replica.pending_steps.begin(), pending);
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
