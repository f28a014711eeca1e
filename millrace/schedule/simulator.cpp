#include "millrace/schedule/simulator.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>

#include "millrace/base/error.h"
#include "millrace/schedule/waits.h"

namespace millrace::schedule {
namespace {

std::vector<int> stages_per_worker(const Pipeline& pipeline) {
  std::vector<int> count(pipeline.num_workers, 0);
  for (const std::vector<int>& workers : pipeline.stages) {
    for (const int worker : workers) ++count[worker];
  }
  return count;
}

double action_seconds(const Pipeline& pipeline, const Costs& costs, int worker, const Action& action) {
  if (costs.replicas.empty()) return 0;
  const ReplicaCosts& replica = costs.replicas[action.stage][replica_on(pipeline, action.stage, worker)];
  const auto part_of = [&](double whole_s, const std::vector<double>& parts_s) {
    if (action.part == kWhole) return whole_s;
    return parts_s.empty() ? whole_s / pipeline.buckets[action.stage] : parts_s[action.part];
  };
  switch (action.kind) {
    case Kind::Forward: return replica.forward_s;
    case Kind::InputGrad: return replica.input_grad_s;
    case Kind::WeightGrad: return replica.weight_grad_s;
    case Kind::Backward: return part_of(replica.input_grad_s + replica.weight_grad_s, replica.backward_part_s);
    case Kind::Step: return part_of(replica.step_s, replica.step_part_s);
    default: return 0;
  }
}

// In list order: a worker's activations come and go with its own actions only.
double peak_of(const Pipeline& pipeline, const std::vector<Action>& list, int stages) {
  int held = 0, peak = 0;
  for (const Action& action : list) {
    const bool last = action.part == kWhole || action.part == pipeline.buckets[action.stage] - 1;
    if (action.kind == Kind::Forward) peak = std::max(peak, ++held);
    if (action.kind == Kind::Forward && !pipeline.learns(action.stage)) --held;
    if (action.kind == Kind::WeightGrad || (action.kind == Kind::Backward && last)) --held;
  }
  return static_cast<double>(peak) / std::max(stages, 1);
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs), waits_(schedule), workers_(schedule.workers.size()) {
    for (const Event& event : waits_.events()) events_.push_back({event.signals, false, {}});
    for (const std::vector<Action>& list : schedule.workers) timeline_.actions.emplace_back(list.size());
  }

  Timeline run() {
    for (int w = 0; w < static_cast<int>(workers_.size()); ++w) moments_.push({0, next_order_++, w, -1});
    while (!moments_.empty()) {
      const Moment moment = moments_.top();
      moments_.pop();
      if (moment.event < 0) {
        advance(moment.worker, moment.at_s);
      } else {
        happen(moment.event, moment.at_s);
      }
    }
    refuse_unfinished();
    const std::vector<int> stages = stages_per_worker(schedule_.pipeline);
    for (size_t w = 0; w < schedule_.workers.size(); ++w) {
      timeline_.peak_activations.push_back(peak_of(schedule_.pipeline, schedule_.workers[w], stages[w]));
    }
    return std::move(timeline_);
  }

 private:
  struct Moment {
    double at_s;
    size_t order;  // of its making: equal times keep it, so that runs repeat
    int worker;
    int event;                                   // -1: the worker goes on
    bool operator<(const Moment& other) const {  // priority_queue has the largest on top
      return at_s != other.at_s ? at_s > other.at_s : order > other.order;
    }
  };
  struct EventState {
    int missing = 0;
    bool happened = false;
    std::vector<int> waiting;  // workers
  };
  struct WorkerState {
    size_t next = 0;
    bool running = false;  // the action `next`, until the moment the worker goes on
  };

  void advance(int w, double now_s) {
    WorkerState& worker = workers_[w];
    const std::vector<Action>& list = schedule_.workers[w];
    if (worker.running) finish_action(w, now_s);
    while (worker.next < list.size()) {
      for (const int event : waits_.waits(w, worker.next)) {
        if (event >= 0 && events_[event].happened) continue;
        if (event >= 0) events_[event].waiting.push_back(w);
        return;
      }
      const double seconds = action_seconds(schedule_.pipeline, costs_, w, list[worker.next]);
      timeline_.actions[w][worker.next] = {now_s, now_s + seconds};
      worker.running = true;
      if (seconds > 0) {
        moments_.push({now_s + seconds, next_order_++, w, -1});
        return;
      }
      finish_action(w, now_s);
    }
  }

  void finish_action(int w, double now_s) {
    WorkerState& worker = workers_[w];
    worker.running = false;
    timeline_.makespan_s = std::max(timeline_.makespan_s, now_s);
    for (const int event : waits_.signals(w, worker.next)) {
      if (event >= 0 && --events_[event].missing == 0) start(event, now_s);
    }
    ++worker.next;
  }

  // All is there for a message or a sum: it takes its turn on its link or stage.
  void start(int event, double now_s) {
    const auto [ports, seconds] = passage(waits_.events()[event]);
    double end_s = now_s;
    for (const double* free_at_s : ports) {
      if (free_at_s != nullptr) end_s = std::max(end_s, *free_at_s);
    }
    end_s += seconds;
    for (double* free_at_s : ports) {
      if (free_at_s != nullptr) *free_at_s = end_s;
    }
    if (end_s <= now_s) {
      happen(event, now_s);
    } else {
      moments_.push({end_s, next_order_++, -1, event});
    }
  }

  struct Passage {
    std::array<double*, 2> free_at_s;  // what it goes through, one after another
    double seconds;
  };
  Passage passage(const Event& event) {
    if (waits_.compute_only()) return {{}, 0};
    if (event.message < 0) {
      const auto& [stage, update, bucket] = event.sum;
      if (stage < 0) return {};
      return {{&sums_free_at_s_[stage], nullptr}, costs_.reduce_s.empty() ? 0 : costs_.reduce_s[stage][bucket]};
    }
    const Message& message = waits_.messages().all()[event.message];
    if (costs_.links.empty() || message.from == message.to) return {{}, 0};
    const Link& link = costs_.links[message.from][message.to];
    const double bytes = costs_.message_bytes.empty()
                             ? 0
                             : message.share * costs_.message_bytes[message.edge][static_cast<int>(message.direction)];
    return {{&sends_free_at_s_[message.from], &receives_free_at_s_[message.to]},
            link.latency_s + bytes / link.bytes_per_s};
  }

  // Workers go on through the queue, not from here: they may be in the middle of an action that signals.
  void happen(int event, double now_s) {
    events_[event].happened = true;
    for (const int worker : events_[event].waiting) moments_.push({now_s, next_order_++, worker, -1});
    events_[event].waiting.clear();
  }

  void refuse_unfinished() const {
    for (size_t w = 0; w < workers_.size(); ++w) {
      const size_t next = workers_[w].next;
      if (next == schedule_.workers[w].size()) continue;
      fail_input("the schedule never ends: worker {} waits at its action {}, {}; `millrace schedule check` says why", w,
                 next, to_text(schedule_, schedule_.workers[w][next]));
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const Waits waits_;
  std::vector<WorkerState> workers_;
  std::vector<EventState> events_;
  std::map<int, double> sends_free_at_s_, receives_free_at_s_;  // per worker
  std::map<int, double> sums_free_at_s_;                        // per stage
  std::priority_queue<Moment> moments_;
  size_t next_order_ = 0;
  Timeline timeline_;
};

}  // namespace

Costs unit_costs(const Pipeline& pipeline, double forward_s, double input_grad_s, double weight_grad_s) {
  const std::vector<int> stages = stages_per_worker(pipeline);
  Costs costs;
  for (const std::vector<int>& workers : pipeline.stages) {
    int most = 1;
    for (const int worker : workers) most = std::max(most, stages[worker]);
    const ReplicaCosts share{forward_s / most, input_grad_s / most, weight_grad_s / most, 0, {}, {}};
    costs.replicas.emplace_back(workers.size(), share);
  }
  return costs;
}

Timeline simulate(const Schedule& schedule, const Costs& costs) { return Simulation(schedule, costs).run(); }

double bubble(const Schedule& schedule, const Timeline& timeline) {
  double busy_s = 0;
  for (size_t w = 0; w < schedule.workers.size(); ++w) {
    for (size_t i = 0; i < schedule.workers[w].size(); ++i) {
      const Span& span = timeline.actions[w][i];
      if (is_compute(schedule.workers[w][i].kind)) busy_s += span.end_s - span.begin_s;
    }
  }
  const double available_s = timeline.makespan_s * static_cast<double>(schedule.workers.size());
  return available_s > 0 ? 1 - busy_s / available_s : 0;
}

}  // namespace millrace::schedule
