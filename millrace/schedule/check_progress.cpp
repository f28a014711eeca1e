// Plays the lists without time: whoever can go on goes on. What order is taken does not matter, since no action that
// can run is ever stopped by another; so if this ends early, every run does.
#include <algorithm>
#include <deque>

#include "millrace/schedule/proof.h"
#include "millrace/schedule/waits.h"

namespace millrace::schedule {
namespace {

class Play {
 public:
  explicit Play(const Proof& proof) : proof_(proof), waits_(proof.schedule()), next_(proof.pipeline().num_workers, 0) {
    for (const Event& event : waits_.events()) missing_.push_back(event.signals);
    waiting_.resize(missing_.size());
  }

  Verdict run() {
    std::deque<int> ready;
    for (int w = 0; w < proof_.pipeline().num_workers; ++w) ready.push_back(w);
    while (!ready.empty()) {
      const int worker = ready.front();
      ready.pop_front();
      advance(worker, ready);
    }
    const bool ended = std::all_of(blockers_.begin(), blockers_.end(), [](int event) { return event < 0; });
    return ended ? Verdict() : smallest_cycle();
  }

 private:
  // A worker that cannot go on because of an action further down some list.
  struct Blocked {
    int worker;
    int event;
    int by_worker, by_action;
  };

  void advance(int w, std::deque<int>& ready) {
    blockers_.resize(next_.size(), -1);
    blockers_[w] = -1;
    for (size_t& next = next_[w]; next < proof_.list(w).size(); ++next) {
      for (const int event : waits_.waits(w, next)) {
        if (missing_[event] == 0) continue;
        waiting_[event].push_back(w);
        blockers_[w] = event;
        return;
      }
      for (const int event : waits_.signals(w, next)) {
        if (--missing_[event] > 0) continue;
        ready.insert(ready.end(), waiting_[event].begin(), waiting_[event].end());
        waiting_[event].clear();
      }
    }
  }

  // For each blocked worker the actions that it waits for.
  std::vector<std::vector<Blocked>> waits_for() const {
    std::vector<std::vector<int>> workers_of(missing_.size());  // blocked by the event
    for (size_t w = 0; w < blockers_.size(); ++w) {
      if (blockers_[w] >= 0) workers_of[blockers_[w]].push_back(static_cast<int>(w));
    }
    std::vector<std::vector<Blocked>> found(next_.size());
    for (int w = 0; w < static_cast<int>(next_.size()); ++w) {
      for (size_t i = next_[w]; i < proof_.list(w).size(); ++i) {
        for (const int event : waits_.signals(w, i)) {
          for (const int blocked : workers_of[event])
            found[blocked].push_back({blocked, event, w, static_cast<int>(i)});
        }
      }
    }
    return found;
  }

  // Breadth first from every blocked worker back to itself.
  Verdict smallest_cycle() const {
    const auto graph = waits_for();
    std::vector<Blocked> smallest;
    for (int start = 0; start < static_cast<int>(graph.size()); ++start) {
      std::vector<const Blocked*> reached_by(graph.size(), nullptr);
      std::deque<int> queue{start};
      while (!queue.empty() && reached_by[start] == nullptr) {
        const int w = queue.front();
        queue.pop_front();
        for (const Blocked& blocked : graph[w]) {
          if (reached_by[blocked.by_worker] != nullptr) continue;
          reached_by[blocked.by_worker] = &blocked;
          queue.push_back(blocked.by_worker);
        }
      }
      if (reached_by[start] == nullptr) continue;
      std::vector<Blocked> cycle;
      for (int w = start; cycle.empty() || w != start;) {
        cycle.push_back(*reached_by[w]);
        w = reached_by[w]->worker;
      }
      std::reverse(cycle.begin(), cycle.end());
      if (smallest.empty() || cycle.size() < smallest.size()) smallest = std::move(cycle);
    }
    return describe(smallest);
  }

  Fault describe(const std::vector<Blocked>& cycle) const {
    std::string what = "waits for ever: it needs ";
    for (size_t i = 0; i < cycle.size(); ++i) {
      const int w = cycle[i].by_worker;
      what += fmt::format("action {} of worker {} ({})", cycle[i].by_action, w, proof_.text(w, cycle[i].by_action));
      if (i + 1 == cycle.size()) break;
      what += fmt::format(", which comes after action {} ({}), which needs ", next_[w],
                          proof_.text(w, static_cast<int>(next_[w])));
    }
    return {cycle[0].worker, static_cast<int>(next_[cycle[0].worker]), what + ", which comes after it"};
  }

  const Proof& proof_;
  const Waits waits_;
  std::vector<size_t> next_;
  std::vector<int> missing_;               // signals of each event
  std::vector<std::vector<int>> waiting_;  // workers, per event
  std::vector<int> blockers_;              // event that a worker waits for; -1: none
};

}  // namespace

Verdict check_progress(const Proof& proof) { return Play(proof).run(); }

}  // namespace millrace::schedule
