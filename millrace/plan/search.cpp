#include "millrace/plan/search.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1 - 1e-9;  // bounds are summed in another order than costs
constexpr size_t kMostTaken = 5000;
constexpr int kFewBlocks = 16;
constexpr size_t kFewStates = 20000;
constexpr unsigned kMostThreads = 16;

enum class Aim { Time, TimeWithoutLimit, Memory };

struct Rules {
  Aim aim = Aim::Time;
  int most_replicas = std::numeric_limits<int>::max();
  int exact_stages = 0;  // 0: any number
};

class Search {
 public:
  // `in_order`: all devices are taken as one kind, in the order of the cluster.
  Search(const profile::Profile& profile, const Cluster& cluster, const CostOptions& options, bool in_order)
      : cluster_(cluster), costs_(profile, cluster, options), n_(costs_.num_operators()) {
    find_kinds(in_order);
    find_choices();
  }

  const StageCosts& costs() const { return costs_; }
  size_t examined() const { return examined_; }

  // The best plan with 1, 2, ... stages, where there is one. Only two of them are sure to be the best with that many
  // stages: the best of all, and the best with any other number.
  std::vector<std::optional<SearchPlan>> run(const Rules& rules) {
    rules_ = rules;
    limit_ = kNever;
    // Few cuts first: what they allow bounds what is worth looking at among more.
    const int most = most_stages();
    for (int blocks = kFewBlocks; 2 * blocks < n_; blocks *= 3) {
      cut_evenly(blocks);
      add_layers(std::min(most, num_blocks()));
    }
    limit_ *= 1 + 1e-9;
    cut_everywhere();
    return add_layers(most);
  }

  SearchPlan one_stage_on_all() const {
    std::vector<int> all;
    for (size_t d = 0; d < cluster_.devices.size(); ++d) all.push_back(static_cast<int>(d));
    const Place place = costs_.place(all, {}, {});
    SearchPlan plan;
    plan.stages.push_back({0, n_ - 1, all, costs_.evaluate(0, n_, place, {1, place.replicas})});
    finish(plan);
    return plan;
  }

 private:
  // The way on from a state: the stage that begins there and what follows it.
  struct Entry {
    double busy = 0, fill = 0;
    int end = 0;        // operator after the stage
    int choice = 0;     // of the state's taken devices
    uint32_t rest = 0;  // entry of the layer before
  };
  // Pipelines with one number of stages: per state those that no other of it beats in both busy and fill.
  struct Layer {
    std::vector<uint32_t> begin;   // per state, and the end
    std::vector<Entry> entries;    // of a state by growing busy and falling fill
    std::vector<int> first, last;  // per taken devices: cuts between which states have entries

    bool has(size_t state) const { return begin[state] < begin[state + 1]; }
    void find_windows(size_t num_taken) {
      first.assign(num_taken, std::numeric_limits<int>::max());
      last.assign(num_taken, -1);
      for (size_t state = 0; state + 1 < begin.size(); ++state) {
        if (!has(state)) continue;
        const int cut = static_cast<int>(state / num_taken);
        first[state % num_taken] = std::min(first[state % num_taken], cut);
        last[state % num_taken] = cut;
      }
    }
  };
  // Devices of a stage: so many of one kind, after which `rest` devices are taken by what follows.
  struct Choice {
    size_t rest = 0;
    Place place;
  };
  struct Taken {
    std::vector<int> counts;  // per kind
    int devices = 0;
    double speed = 0;       // of all that are taken
    double speed_left = 0;  // of all others
    std::vector<Choice> choices;
  };

  int num_blocks() const { return static_cast<int>(cuts_.size()) - 1; }
  size_t num_states() const { return cuts_.size() * taken_.size(); }
  size_t state(int cut, size_t taken) const { return static_cast<size_t>(cut) * taken_.size() + taken; }
  double seconds(int begin_cut, int end_cut) const { return costs_.seconds(cuts_[begin_cut], cuts_[end_cut]); }

  int most_stages() const {
    if (rules_.exact_stages > 0) return rules_.exact_stages;
    if (costs_.options().mode == job::Mode::Dp) return 1;
    return std::min(costs_.most_stages(), static_cast<int>(cluster_.devices.size()));
  }

  void cut_everywhere() {
    cuts_.clear();
    for (int op = 0; op <= n_; ++op) {
      if (costs_.may_cut(op)) cuts_.push_back(op);
    }
  }
  // Into blocks of about the same time; where operators take none, of the same number.
  void cut_evenly(int blocks) {
    cuts_.assign(1, 0);
    const double per_operator = (costs_.seconds(0, n_) + 1e-9) / n_;
    for (int op = 1; op < n_; ++op) {
      const double done = costs_.seconds(0, op) + per_operator * op;
      const double whole = costs_.seconds(0, n_) + per_operator * n_;
      if (costs_.may_cut(op) && done / whole * blocks >= static_cast<double>(cuts_.size())) cuts_.push_back(op);
    }
    cuts_.push_back(n_);
  }

  std::vector<std::optional<SearchPlan>> add_layers(int most) {
    layers_.assign(1, {});
    Layer& end = layers_[0];
    end.begin.assign(num_states() + 1, 0);
    const size_t start = state(num_blocks(), 0);
    std::fill(end.begin.begin() + static_cast<std::ptrdiff_t>(start) + 1, end.begin.end(), 1u);
    end.entries.push_back({});
    end.find_windows(taken_.size());
    std::vector<std::optional<SearchPlan>> plans;
    std::vector<double> values;
    for (int stages = 1; stages <= most; ++stages) {
      add_layer(stages, most);
      plans.emplace_back();
      if (stages < rules_.exact_stages) continue;
      const auto [value, taken, entry] = best_of_layer(stages);
      if (value == kNever) continue;
      plans.back() = plan_of(stages, taken, entry);
      values.push_back(value);
      std::sort(values.begin(), values.end());
      if (rules_.exact_stages > 0) limit_ = std::min(limit_, value);
      if (values.size() > 1) limit_ = std::min(limit_, values[1]);
    }
    return plans;
  }

  void find_kinds(bool in_order) {
    std::map<std::pair<double, int64_t>, size_t> known;
    for (size_t d = 0; d < cluster_.devices.size(); ++d) {
      const Device& device = cluster_.devices[d];
      const auto key = in_order ? std::pair(0.0, int64_t{0}) : std::pair(device.speed, device.memory_bytes);
      const auto [kind, is_new] = known.emplace(key, kinds_.size());
      if (is_new) kinds_.emplace_back();
      kinds_[kind->second].push_back(static_cast<int>(d));
    }
  }

  // All combinations of devices taken from the end of each kind's list, and the stages that could have come last.
  void find_choices() {
    size_t combinations = 1;
    std::vector<size_t> stride;
    for (const auto& kind : kinds_) {
      stride.push_back(combinations);
      combinations *= kind.size() + 1;
      if (combinations > kMostTaken) fail_input("the cluster has too many kinds of devices to plan for");
    }
    taken_.resize(combinations);
    for (size_t index = 0; index < combinations; ++index) {
      Taken& taken = taken_[index];
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        const int count = static_cast<int>(index / stride[kind] % (kinds_[kind].size() + 1));
        taken.counts.push_back(count);
        taken.devices += count;
        const int left = static_cast<int>(kinds_[kind].size()) - count;
        for (int i = 0; i < static_cast<int>(kinds_[kind].size()); ++i) {
          (i < left ? taken.speed_left : taken.speed) += cluster_.devices[kinds_[kind][i]].speed;
        }
      }
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        for (int replicas = 1; replicas <= taken.counts[kind]; ++replicas) {
          const size_t rest = index - replicas * stride[kind];
          const auto first = kinds_[kind].end() - taken.counts[kind];
          taken.choices.push_back(
              {rest, costs_.place({first, first + replicas}, next_before(taken), next_after(taken_[rest]))});
        }
      }
    }
  }

  // Of each kind the device that a stage before would take first, and the one that a stage after took last.
  std::vector<int> next_before(const Taken& taken) const {
    std::vector<int> devices;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const auto left = static_cast<int>(kinds_[kind].size()) - taken.counts[kind];
      if (left > 0) devices.push_back(kinds_[kind][left - 1]);
    }
    return devices;
  }
  std::vector<int> next_after(const Taken& taken) const {
    std::vector<int> devices;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      if (taken.counts[kind] > 0) devices.push_back(kinds_[kind][kinds_[kind].size() - taken.counts[kind]]);
    }
    return devices;
  }

  // States of a layer depend only on the layer before: cuts are shared out over threads, their results put together in
  // order, so that the outcome is the same.
  void add_layer(int stages, int most) {
    struct Row {
      std::vector<Entry> entries;
      std::vector<uint32_t> ends;  // per taken devices
      size_t examined = 0;
    };
    std::vector<Row> rows(cuts_.size());
    std::atomic<int> next{0};
    const auto work = [&] {
      std::vector<Entry> front;
      for (int cut = next++; cut <= num_blocks(); cut = next++) {
        Row& row = rows[cut];
        for (size_t taken = 0; taken < taken_.size(); ++taken) {
          front.clear();
          // Before this state there must be room for what is left, in operators and in devices.
          const bool can_go_on = cut > 0 && stages < most && taken_[taken].speed_left > 0;
          if ((cut == 0 || can_go_on) && num_blocks() - cut >= stages && taken_[taken].devices >= stages) {
            row.examined += fill_front(front, cut, taken, stages);
          }
          row.entries.insert(row.entries.end(), front.begin(), front.end());
          row.ends.push_back(static_cast<uint32_t>(row.entries.size()));
        }
      }
    };
    std::vector<std::thread> helpers;
    for (unsigned i = 1; i < num_threads(); ++i) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();

    Layer layer;
    layer.begin.push_back(0);
    for (const Row& row : rows) {
      const auto before = static_cast<uint32_t>(layer.entries.size());
      layer.entries.insert(layer.entries.end(), row.entries.begin(), row.entries.end());
      for (uint32_t end : row.ends) layer.begin.push_back(before + end);
      examined_ += row.examined;
    }
    layer.find_windows(taken_.size());
    layers_.push_back(std::move(layer));
  }

  // A thread costs more than a small layer.
  unsigned num_threads() const {
    if (num_states() * taken_.size() < kFewStates) return 1;
    return std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
  }

  bool counts_time() const { return rules_.aim != Aim::Memory; }
  bool counts_fill() const { return counts_time() && costs_.options().synchronous(); }

  // What work takes at least on devices of this speed together.
  struct Bound {
    double busy = 0, fill = 0;
  };
  Bound bound(double seconds, double speed) const {
    if (!counts_time() || seconds <= 0) return {};
    return {costs_.least_busy(seconds, speed) * kRounding, costs_.least_fill(seconds, speed) * kRounding};
  }

  // Whether pipelines with at least these costs from here on, and `before` before, are of no use.
  bool hopeless(const std::vector<Entry>& front, const Bound& before, double busy, double fill) const {
    if (std::max(busy, before.busy) + fill + before.fill >= limit_) return true;
    const auto above = std::upper_bound(front.begin(), front.end(), busy,
                                        [](double value, const Entry& entry) { return value < entry.busy; });
    return above != front.begin() && std::prev(above)->fill <= fill;
  }

  // Adds what no entry beats, and takes out those it beats. The place after it.
  static size_t insert(std::vector<Entry>& front, const Entry& entry) {
    const auto at = std::lower_bound(front.begin(), front.end(), entry.busy,
                                     [](const Entry& old, double value) { return old.busy < value; });
    auto end = at;
    while (end != front.end() && end->fill >= entry.fill) ++end;
    const auto added = front.insert(front.erase(at, end), entry);
    return added - front.begin() + 1;
  }

  // Adds the stage before each of its continuations. Both lists are sorted, so they are gone through together.
  void merge(std::vector<Entry>& front, const Bound& before, Entry stage, std::span<const Entry> continuations,
             uint32_t first_index) const {
    // Of those that are less busy than this stage, the one that fills fastest is best.
    const auto busier = std::upper_bound(continuations.begin(), continuations.end(), stage.busy,
                                         [](double value, const Entry& entry) { return value < entry.busy; });
    const size_t start = busier == continuations.begin() ? 0 : busier - continuations.begin() - 1;
    const double least_fill = stage.fill + continuations.back().fill + before.fill;
    size_t above = 0;  // first of the front that is busier than the entry
    for (size_t i = start; i < continuations.size(); ++i) {
      Entry entry = stage;
      entry.busy = std::max(stage.busy, continuations[i].busy);
      entry.fill = stage.fill + continuations[i].fill;
      entry.rest = first_index + static_cast<uint32_t>(i);
      const double most_busy = std::max(entry.busy, before.busy);
      if (most_busy + least_fill >= limit_) return;
      while (above < front.size() && front[above].busy <= entry.busy) ++above;
      if (above > 0 && front[above - 1].fill <= entry.fill) continue;
      if (most_busy + entry.fill + before.fill < limit_) above = insert(front, entry);
    }
  }

  // Both return how many stages they looked at.
  size_t fill_front(std::vector<Entry>& front, int cut, size_t taken, int stages) const {
    const Bound before = cut == 0 ? Bound{} : bound(seconds(0, cut), taken_[taken].speed_left);
    const Bound all = bound(seconds(cut, num_blocks()), taken_[taken].speed);
    if (hopeless(front, before, all.busy, all.fill)) return 0;
    size_t examined = 0;
    for (size_t choice = 0; choice < taken_[taken].choices.size(); ++choice) {
      if (taken_[taken].choices[choice].place.replicas > rules_.most_replicas) continue;
      examined += try_stages(front, before, cut, taken, static_cast<int>(choice), stages);
    }
    return examined;
  }

  // Stages on the chosen devices, growing until they are too much.
  size_t try_stages(std::vector<Entry>& front, const Bound& before, int cut, size_t taken, int choice,
                    int stages) const {
    size_t examined = 0;
    const auto& [rest, place] = taken_[taken].choices[choice];
    const Layer& layer = layers_[stages - 1];
    const Depth depth{stages, taken_[taken].devices};
    for (int end = std::max(cut + 1, layer.first[rest]); end <= layer.last[rest]; ++end) {
      Bound least = bound(seconds(cut, end), place.replicas * place.speed);
      if (rules_.aim != Aim::TimeWithoutLimit) {
        const double bytes = costs_.least_memory(cuts_[cut], cuts_[end], place, depth) * kRounding;
        if (rules_.aim == Aim::Memory) least.busy = bytes / room(place);
        if (rules_.aim == Aim::Time && bytes > place.memory_bytes) return examined;
      }
      if (hopeless(front, before, least.busy, least.fill)) return examined;
      const size_t next = state(end, rest);
      if (!layer.has(next)) continue;
      const auto first = layer.entries.begin() + layer.begin[next],
                 last = layer.entries.begin() + layer.begin[next + 1];
      // The least of both that any continuation has.
      if (hopeless(front, before, std::max(least.busy, first->busy), least.fill + std::prev(last)->fill)) continue;
      ++examined;
      const StageCost cost = costs_.evaluate(cuts_[cut], cuts_[end], place, depth);
      if (rules_.aim == Aim::Time && cost.memory.total() > place.memory_bytes) continue;
      const double busy = counts_time() ? cost.busy_s : cost.memory.total() / room(place);
      const double fill = counts_fill() ? cost.fill_s : 0;
      merge(front, before, {busy, fill, end, choice, 0}, {first, last}, layer.begin[next]);
    }
    return examined;
  }

  static double room(const Place& place) { return std::max(place.memory_bytes, 1.0); }

  struct Found {
    double value = kNever;
    size_t taken = 0;
    uint32_t entry = 0;
  };
  Found best_of_layer(int stages) const {
    const Layer& layer = layers_[stages];
    Found found;
    for (size_t taken = 0; taken < taken_.size(); ++taken) {
      for (uint32_t i = layer.begin[state(0, taken)]; i < layer.begin[state(0, taken) + 1]; ++i) {
        const double value = layer.entries[i].busy + layer.entries[i].fill;
        if (value < found.value) found = {value, taken, i};
      }
    }
    return found;
  }

  SearchPlan plan_of(int stages, size_t taken, uint32_t index) const {
    SearchPlan plan;
    int cut = 0;
    for (int left = stages; left > 0; --left) {
      const Entry& entry = layers_[left].entries[index];
      const Choice& choice = taken_[taken].choices[entry.choice];
      const int begin = cuts_[cut], end = cuts_[entry.end];
      const StageCost cost = costs_.evaluate(begin, end, choice.place, {left, taken_[taken].devices});
      plan.stages.push_back({begin, end - 1, choice.place.devices, cost});
      cut = entry.end;
      taken = choice.rest;
      index = entry.rest;
    }
    finish(plan);
    return plan;
  }

  void finish(SearchPlan& plan) const {
    double busy = 0, fill = 0;
    for (const SearchStage& stage : plan.stages) {
      busy = std::max(busy, stage.cost.busy_s);
      fill += stage.cost.fill_s;
      for (int device : stage.devices) {
        const int64_t room = cluster_.devices[device].memory_bytes - costs_.options().reserved_bytes;
        plan.fits = plan.fits && stage.cost.memory.total() <= static_cast<double>(room);
      }
    }
    plan.step_s = busy + fill;
  }

  const Cluster& cluster_;
  StageCosts costs_;
  int n_;
  std::vector<std::vector<int>> kinds_;  // devices of equal speed and memory
  std::vector<Taken> taken_;
  Rules rules_;
  double limit_ = kNever;  // what cannot be better than this is neither best nor runner-up
  std::vector<int> cuts_;  // operators that a stage may begin with, and the end
  std::vector<Layer> layers_;
  size_t examined_ = 0;
};

std::string mib(double bytes) { return fmt::format("{:.1f} MiB", bytes / (1 << 20)); }

struct Fullest {
  size_t stage = 0;
  int device = 0;
  double share = -1;  // of the device's memory that the stage needs
};

Fullest fullest(const SearchPlan& plan, const Cluster& cluster, const CostOptions& options) {
  Fullest found;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (int d : plan.stages[s].devices) {
      const double room = static_cast<double>(cluster.devices[d].memory_bytes - options.reserved_bytes);
      const double share = plan.stages[s].cost.memory.total() / std::max(room, 1.0);
      if (share > found.share) found = {s, d, share};
    }
  }
  return found;
}

SearchPlan needs_least(const std::vector<std::optional<SearchPlan>>& plans, const Cluster& cluster,
                       const CostOptions& options) {
  const SearchPlan* least = nullptr;
  double least_share = kNever;
  for (const auto& plan : plans) {
    if (!plan) continue;
    const double share = fullest(*plan, cluster, options).share;
    if (share < least_share) std::tie(least_share, least) = std::tuple(share, &*plan);
  }
  return *least;
}

// `plan` needs least memory, and yet does not fit.
std::string explain(const SearchPlan& plan, const profile::Profile& profile, const Cluster& cluster,
                    const CostOptions& options) {
  const Fullest worst = fullest(plan, cluster, options);
  const Device& device = cluster.devices[worst.device];
  const SearchStage& stage = plan.stages[worst.stage];
  const StageMemory& memory = stage.cost.memory;
  const std::string reserved =
      options.reserved_bytes > 0 ? fmt::format(", {} of it reserved", mib(static_cast<double>(options.reserved_bytes)))
                                 : std::string();
  return fmt::format(
      "no plan fits: in the one that needs least, stage {} of {} ({} to {}) needs {} on device {}:{}, which has {}{}: "
      "weights {} ({}) + gradients {} + optimizer {} + activations {} ({} in flight) + buffers {} + workspace {}",
      worst.stage + 1, plan.stages.size(), profile.operators[stage.first].name, profile.operators[stage.last].name,
      mib(memory.total()), device.id.node, device.id.device, mib(static_cast<double>(device.memory_bytes)), reserved,
      mib(memory.weights), memory.versions == 1 ? "1 version" : fmt::format("{} versions", memory.versions),
      mib(memory.gradients), mib(memory.optimizer), mib(memory.activations), memory.in_flight, mib(memory.buffers),
      mib(memory.workspace));
}

// The first of the least.
const SearchPlan* fastest(const std::vector<std::optional<SearchPlan>>& plans, const SearchPlan* other_than) {
  const SearchPlan* found = nullptr;
  for (const auto& plan : plans) {
    if (!plan || (other_than != nullptr && plan->stages.size() == other_than->stages.size())) continue;
    if (found == nullptr || plan->step_s < found->step_s) found = &*plan;
  }
  return found;
}

}  // namespace

SearchResult search(const profile::Profile& profile, const Cluster& cluster, const CostOptions& options) {
  Search search(profile, cluster, options, false);
  SearchResult result;
  result.data_parallel = search.one_stage_on_all();
  const int straight = std::min(static_cast<int>(cluster.devices.size()), search.costs().most_stages());
  if (straight > 1 && options.mode != job::Mode::Dp) {
    Rules rules{.aim = Aim::Time, .most_replicas = 1, .exact_stages = straight};
    Search in_order(profile, cluster, options, true);
    auto pipelines = in_order.run(rules);
    if (!pipelines.back()) {
      rules.aim = Aim::TimeWithoutLimit;
      pipelines = in_order.run(rules);
    }
    result.straight_pipeline = pipelines.back();
    result.examined = in_order.examined();
  }
  auto plans = search.run({});
  // With devices of several kinds the baselines mix them in ways the search does not.
  const auto consider = [&](const SearchPlan& baseline) {
    auto& plan = plans[baseline.stages.size() - 1];
    if (baseline.fits && (!plan || baseline.step_s < plan->step_s)) plan = baseline;
  };
  consider(result.data_parallel);
  if (result.straight_pipeline) consider(*result.straight_pipeline);
  if (const SearchPlan* best = fastest(plans, nullptr)) {
    result.best = *best;
    if (const SearchPlan* other = fastest(plans, best)) result.runner_up = *other;
  } else {
    result.refusal =
        explain(needs_least(search.run({.aim = Aim::Memory}), cluster, options), profile, cluster, options);
  }
  result.examined += search.examined();
  return result;
}

}  // namespace millrace::plan
