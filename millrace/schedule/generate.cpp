// The compute actions of the five modes. Workers with one stage follow the closed forms; where a worker runs several
// stages, the order is found by playing the pipeline through with unit times.
#include <algorithm>
#include <limits>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {
namespace {

using job::Mode;
using job::Replicas;

int total_replicas(const Pipeline& pipeline, int first_stage) {
  int total = 0;
  for (int s = first_stage; s < pipeline.num_stages(); ++s) total += pipeline.num_replicas(s);
  return total;
}

// How many micro-batches a replica takes in before its first backward, less one. Enough to keep every later stage
// busy, never more than its versions allow, and never more than the stage before can deliver.
std::vector<int> warmups(const Pipeline& pipeline) {
  std::vector<int> warmup;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    int ahead = pipeline.num_stages() - 1 - s;
    if (pipeline.replicas == Replicas::RoundRobin) {
      ahead = (total_replicas(pipeline, s) - 1) / pipeline.num_replicas(s);
    }
    if (!pipeline.synchronous()) ahead = std::min(ahead, pipeline.versions[s] - 1);
    if (!pipeline.ahead.empty()) ahead = std::min(ahead, pipeline.ahead[s]);
    // In minibatches of the whole pipeline, as replicas in turn may differ in number.
    if (s > pipeline.frozen && pipeline.replicas == Replicas::Split) ahead = std::min(ahead, warmup[s - 1]);
    warmup.push_back(ahead);
  }
  return warmup;
}

Action compute(const Pipeline& pipeline, Kind kind, int stage, int microbatch) {
  Action action;
  action.kind = kind;
  action.stage = stage;
  action.microbatch = microbatch;
  action.version = pipeline.learns(stage) ? version_of(pipeline, stage, microbatch) : 0;
  return action;
}

std::vector<int> taken(const Pipeline& pipeline, int stage, int replica, int first, int last) {
  std::vector<int> microbatches;
  for (int m = first; m < last; ++m) {
    if (takes(pipeline, stage, replica, m)) microbatches.push_back(m);
  }
  return microbatches;
}

// `ahead` forwards, then a forward and a backward in turn, then what backwards are left.
void one_forward_one_backward(const Pipeline& pipeline, int stage, const std::vector<int>& microbatches, int ahead,
                              std::vector<Action>& list) {
  if (!pipeline.learns(stage)) {
    for (const int m : microbatches) list.push_back(compute(pipeline, Kind::Forward, stage, m));
    return;
  }
  const int count = static_cast<int>(microbatches.size());
  for (int l = 0; l < count + ahead; ++l) {
    if (l < count) list.push_back(compute(pipeline, Kind::Forward, stage, microbatches[l]));
    if (l >= ahead) list.push_back(compute(pipeline, Kind::Backward, stage, microbatches[l - ahead]));
  }
}

int forwards_ahead(const Pipeline& pipeline, int count, int warmup) {
  switch (pipeline.mode) {
    case Mode::Dp: return 0;
    case Mode::GPipe: return std::max(count - 1, 0);
    default: return std::min(warmup, std::max(count - 1, 0));
  }
}

bool shares_workers(const Pipeline& pipeline) {
  std::vector<int> stages_of(pipeline.num_workers, 0);
  for (const auto& workers : pipeline.stages) {
    for (int worker : workers) ++stages_of[worker];
  }
  return std::any_of(stages_of.begin(), stages_of.end(), [](int stages) { return stages > 1; });
}

// Plays a stretch of micro-batches through workers that run several stages: each worker takes what is ready first,
// a backward before a forward and a later stage before an earlier one.
class Player {
 public:
  Player(const Pipeline& pipeline, int first, int last, std::vector<std::vector<Action>>& lists)
      : pipeline_(pipeline), lists_(lists), free_at_(pipeline.num_workers, 0) {
    const std::vector<int> warmup = warmups(pipeline);
    for (int s = 0; s < pipeline.num_stages(); ++s) {
      forward_end_.emplace_back(last - first, 0);
      backward_end_.emplace_back(last - first, 0);
      forwards_left_.emplace_back(last - first, takers(s));
      backwards_left_.emplace_back(last - first, takers(s));
      for (int r = 0; r < pipeline.num_replicas(s); ++r) {
        Replica replica;
        replica.stage = s;
        replica.worker = pipeline.stages[s][r];
        replica.microbatches = taken(pipeline, s, r, first, last);
        replica.ahead = forwards_ahead(pipeline, static_cast<int>(replica.microbatches.size()), warmup[s]);
        replicas_.push_back(std::move(replica));
      }
    }
    first_ = first;
  }

  void play() {
    while (take_next()) {
    }
  }

 private:
  struct Replica {
    int stage = 0;
    int worker = 0;
    std::vector<int> microbatches;
    int ahead = 0;
    size_t forwards = 0, backwards = 0;
  };
  struct Candidate {
    Replica* replica = nullptr;
    bool backward = false;
    int64_t start = std::numeric_limits<int64_t>::max();
    bool better_than(const Candidate& other) const {
      if (!other.replica || start != other.start) return start < other.start;
      if (backward != other.backward) return backward;
      // What is furthest on its way: nothing piles up in the buffers between two stages of one worker.
      return backward ? replica->stage < other.replica->stage : replica->stage > other.replica->stage;
    }
  };

  int takers(int stage) const { return pipeline_.replicas == Replicas::Split ? pipeline_.num_replicas(stage) : 1; }

  // When the replica could start, or never yet.
  int64_t ready(const Replica& replica, bool backward) const {
    const int64_t never = std::numeric_limits<int64_t>::max();
    const size_t next = backward ? replica.backwards : replica.forwards;
    if (next == replica.microbatches.size()) return never;
    // Every replica keeps the closed form's order. Were a backward taken before the forward that belongs ahead of it,
    // replicas of the same stage on other workers, which are that far ahead, would wait for this one.
    const size_t due = std::min(replica.backwards + replica.ahead + 1, replica.microbatches.size());
    if (backward ? replica.forwards < due : replica.forwards >= due) return never;
    const int m = replica.microbatches[next] - first_;
    int64_t at = std::max(free_at_[replica.worker], last_sum(replica));
    for (const Edge& edge : pipeline_.edges) {
      const int other = backward ? edge.to : edge.from;
      if ((backward ? edge.from : edge.to) != replica.stage) continue;
      if ((backward ? backwards_left_ : forwards_left_)[other][m] > 0) return never;
      at = std::max(at, (backward ? backward_end_ : forward_end_)[other][m]);
    }
    return at;
  }

  // Without a flush, a replica goes on when its last update is summed, for which the others must have got as far.
  int64_t last_sum(const Replica& replica) const {
    const int replicas = pipeline_.num_replicas(replica.stage);
    if (pipeline_.synchronous() || replicas == 1 || replica.backwards == 0) return 0;
    const int size = pipeline_.replicas == Replicas::Split ? 1 : replicas;
    const int update = update_of(pipeline_, replica.stage, replica.microbatches[replica.backwards - 1]);
    const int end = std::min((update + 1) * size - first_, static_cast<int>(backwards_left_[replica.stage].size()));
    int64_t at = 0;
    for (int m = update * size - first_; m < end; ++m) {
      if (backwards_left_[replica.stage][m] > 0) return std::numeric_limits<int64_t>::max();
      at = std::max(at, backward_end_[replica.stage][m]);
    }
    return at;
  }

  bool take_next() {
    Candidate best;
    for (Replica& replica : replicas_) {
      for (bool backward : {true, false}) {
        const Candidate candidate{&replica, backward, ready(replica, backward)};
        if (candidate.start == std::numeric_limits<int64_t>::max()) continue;
        if (candidate.better_than(best)) best = candidate;
      }
    }
    if (!best.replica) return false;
    Replica& replica = *best.replica;
    size_t& next = best.backward ? replica.backwards : replica.forwards;
    const int microbatch = replica.microbatches[next++];
    const Kind kind = best.backward ? Kind::Backward : Kind::Forward;
    lists_[replica.worker].push_back(compute(pipeline_, kind, replica.stage, microbatch));
    const int64_t end = best.start + (best.backward ? 2 : 1);
    free_at_[replica.worker] = end;
    auto& ends = (best.backward ? backward_end_ : forward_end_)[replica.stage][microbatch - first_];
    ends = std::max(ends, end);
    --(best.backward ? backwards_left_ : forwards_left_)[replica.stage][microbatch - first_];
    return true;
  }

  const Pipeline& pipeline_;
  std::vector<std::vector<Action>>& lists_;
  std::vector<int64_t> free_at_;
  std::vector<std::vector<int64_t>> forward_end_, backward_end_;
  std::vector<std::vector<int>> forwards_left_, backwards_left_;
  std::vector<Replica> replicas_;
  int first_ = 0;
};

void add_stretch(Schedule& schedule, int first, int last) {
  const Pipeline& pipeline = schedule.pipeline;
  if (pipeline.frozen == 0 && shares_workers(pipeline)) return Player(pipeline, first, last, schedule.workers).play();
  const std::vector<int> warmup = warmups(pipeline);
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    for (int r = 0; r < pipeline.num_replicas(s); ++r) {
      const std::vector<int> microbatches = taken(pipeline, s, r, first, last);
      const int ahead = forwards_ahead(pipeline, static_cast<int>(microbatches.size()), warmup[s]);
      one_forward_one_backward(pipeline, s, microbatches, ahead, schedule.workers[pipeline.stages[s][r]]);
    }
  }
}

}  // namespace

Schedule compute_schedule(const Pipeline& pipeline, int updates) {
  Schedule schedule;
  schedule.pipeline = pipeline;
  schedule.workers.resize(pipeline.num_workers);
  if (pipeline.synchronous()) {
    schedule.microbatches = updates * pipeline.microbatches;
    for (int u = 0; u < updates; ++u) {
      add_stretch(schedule, u * pipeline.microbatches, (u + 1) * pipeline.microbatches);
    }
  } else {
    schedule.microbatches = updates;
    add_stretch(schedule, 0, updates);
  }
  return schedule;
}

Schedule evaluation_schedule(const Pipeline& pipeline, int microbatches) {
  Schedule schedule;
  schedule.pipeline = pipeline;
  schedule.microbatches = microbatches;
  schedule.trains = false;
  schedule.workers.resize(pipeline.num_workers);
  for (int m = 0; m < microbatches; ++m) {
    for (int s = 0; s < pipeline.num_stages(); ++s) {
      for (int r = 0; r < pipeline.num_replicas(s); ++r) {
        if (!takes(pipeline, s, r, m)) continue;
        Action action = compute(pipeline, Kind::Forward, s, m);
        action.version = 0;
        schedule.workers[pipeline.stages[s][r]].push_back(action);
      }
    }
  }
  return schedule;
}

}  // namespace millrace::schedule
