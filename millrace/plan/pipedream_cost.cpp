#include "millrace/plan/pipedream_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/base/error.h"
#include "millrace/plan/prefixes.h"

namespace millrace::plan {
namespace {

constexpr double kRounding = 1 - 1e-9;  // bounds are summed in another order than costs
constexpr double kNever = std::numeric_limits<double>::infinity();

// Pairs of prefixes are looked at with one level, triples with more.
constexpr size_t kMostPrefixes = 4000;
constexpr size_t kMostPrefixesOfLevels = 800;

class Planner {
 public:
  Planner(const profile::Profile& profile, std::span<const PipeDreamLevel> levels)
      : profile_(profile),
        levels_(levels),
        prefixes_(find_prefixes(profile, levels.size() > 1 ? kMostPrefixesOfLevels : kMostPrefixes)) {
    for (const OperatorSet& set : prefixes_.sets) {
      double seconds = 0, param_bytes = 0;
      for (size_t op = 0; op < profile.operators.size(); ++op) {
        if (!contains(set, static_cast<int>(op))) continue;
        const profile::Operator& cost = profile.operators[op];
        seconds += cost.forward.median + cost.input_grad.median + cost.weight_grad.median;
        param_bytes += static_cast<double>(cost.param_bytes);
      }
      seconds_.push_back(seconds);
      param_bytes_.push_back(param_bytes);
      crossing_bytes_.push_back(static_cast<double>(crossing_bytes(profile, set)));
    }
    is_chain_ = prefixes_.sets.size() == profile.operators.size() + 1;
    find_subsets();
  }

  PipeDreamPlan plan() {
    const int whole = num_prefixes() - 1;
    for (size_t level = 0; level + 1 < levels_.size(); ++level) group_seconds_.push_back(all_groups(level));
    PipeDreamPlan plan;
    plan.num_prefixes = prefixes_.sets.size();
    plan.all_prefixes = prefixes_.complete;
    plan.cost_s = costs_from(0, levels_.size() - 1).back()[whole].cost_s;
    plan.data_parallel_s = seconds_[whole];
    for (size_t level = 0; level < levels_.size(); ++level) {
      plan.data_parallel_s = one_stage(level, plan.data_parallel_s, param_bytes_[whole], levels_[level].workers);
    }
    add_stages(plan, levels_.size() - 1, 0, whole, 1);
    return plan;
  }

 private:
  // The cheapest pipeline of a slice: what stands before its last stage, and that stage's replicas.
  struct Best {
    double cost_s = kNever;
    int split = -1;  // prefix that the last stage begins after; -1: it is the only one
    int replicas = 0;
  };
  using Row = std::vector<Best>;  // per end of the slice

  int num_prefixes() const { return static_cast<int>(prefixes_.sets.size()); }

  void find_subsets() {
    subsets_.resize(num_prefixes());
    for (int end = 0; end < num_prefixes(); ++end) {
      for (int begin = 0; begin < end; ++begin) {
        if (is_chain_ || is_subset(prefixes_.sets[begin], prefixes_.sets[end])) subsets_[end].push_back(begin);
      }
    }
  }

  // Of a slice on one worker of the level.
  double worker_seconds(size_t level, int begin, int end) const {
    if (level == 0) return seconds_[end] - seconds_[begin];
    return group_seconds_[level - 1][static_cast<size_t>(begin) * num_prefixes() + end];
  }

  double reduce_seconds(size_t level, double param_bytes, int replicas) const {
    return 4 * (replicas - 1) * param_bytes / (levels_[level].bytes_per_s * replicas);
  }

  double one_stage(size_t level, double seconds, double param_bytes, int replicas) const {
    const int within = level == 0 ? 1 : levels_[level - 1].workers;
    return (seconds + reduce_seconds(level, param_bytes, replicas) / within) / replicas;
  }

  // A stage after the first: its time, and that of what goes in and out.
  double later_stage(size_t level, int begin, int end, int replicas) const {
    const double param_bytes = param_bytes_[end] - param_bytes_[begin];
    const double seconds =
        (worker_seconds(level, begin, end) + reduce_seconds(level, param_bytes, replicas)) / replicas;
    const double per_byte = 2 / (levels_[level].bytes_per_s * replicas);
    double bytes = crossing_bytes_[begin];
    if (end + 1 < num_prefixes()) bytes = std::max(bytes, crossing_bytes_[end]);
    return std::max(seconds, bytes * per_byte);
  }

  // [m - 1][end]: the best with m workers for every slice that begins after prefix `begin`.
  std::vector<Row> costs_from(int begin, size_t level) const {
    const int workers = levels_[level].workers;
    std::vector<Row> rows(workers, Row(num_prefixes()));
    for (int end = begin + 1; end < num_prefixes(); ++end) {
      if (!std::binary_search(subsets_[end].begin(), subsets_[end].end(), begin)) continue;
      const double param_bytes = param_bytes_[end] - param_bytes_[begin];
      for (int m = 1; m <= workers; ++m) {
        Best best{one_stage(level, worker_seconds(level, begin, end), param_bytes, m), -1, m};
        for (int replicas = 1; replicas < m; ++replicas) {
          improve(best, rows[m - replicas - 1], level, begin, end, replicas, m - replicas);
        }
        rows[m - 1][end] = best;
      }
    }
    return rows;
  }

  // Tries every last stage with so many replicas after so many workers for what is before. In a chain only where the
  // work alone, on either side, is not too much already.
  void improve(Best& best, const Row& before, size_t level, int begin, int end, int replicas, int workers) const {
    double devices = kRounding;
    for (size_t inner = 0; inner < level; ++inner) devices /= levels_[inner].workers;
    const std::vector<int>& splits = subsets_[end];
    auto split = splits.rbegin();
    if (is_chain_) {
      const double most = seconds_[begin] + best.cost_s / devices * workers;
      split = std::partition_point(split, splits.rend(), [&](int cut) { return seconds_[cut] >= most; });
    }
    for (; split != splits.rend(); ++split) {
      if (is_chain_ && (seconds_[end] - seconds_[*split]) / replicas * devices >= best.cost_s) break;
      const double cost_before = before[*split].cost_s;
      if (cost_before >= best.cost_s) continue;
      const double cost = std::max(cost_before, later_stage(level, *split, end, replicas));
      if (cost < best.cost_s) best = {cost, *split, replicas};
    }
  }

  std::vector<double> all_groups(size_t level) const {
    const size_t n = prefixes_.sets.size();
    std::vector<double> seconds(n * n, kNever);
    for (size_t begin = 0; begin + 1 < n; ++begin) {
      const Row row = costs_from(static_cast<int>(begin), level).back();
      for (size_t end = 0; end < n; ++end) seconds[begin * n + end] = row[end].cost_s;
    }
    return seconds;
  }

  // Stages of the slice on all workers of the level; each stands for `times` of them.
  void add_stages(PipeDreamPlan& plan, size_t level, int begin, int end, int times) const {
    const std::vector<Row> rows = costs_from(begin, level);
    struct Slice {
      int begin, end, replicas;
    };
    std::vector<Slice> slices;
    for (int workers = levels_[level].workers; end > begin;) {
      const Best& best = rows[workers - 1][end];
      const int from = best.split < 0 ? begin : best.split;
      slices.push_back({from, end, best.replicas});
      workers -= best.replicas;
      end = from;
    }
    std::reverse(slices.begin(), slices.end());
    for (const Slice& slice : slices) {
      if (level > 0) {
        add_stages(plan, level - 1, slice.begin, slice.end, times * slice.replicas);
        continue;
      }
      PipeDreamStage stage;
      stage.replicas = times * slice.replicas;
      stage.compute_s = seconds_[slice.end] - seconds_[slice.begin];
      for (int op = 0; op < static_cast<int>(profile_.operators.size()); ++op) {
        const bool before = contains(prefixes_.sets[slice.begin], op);
        if (!before && contains(prefixes_.sets[slice.end], op)) stage.operators.push_back(op);
      }
      plan.stages.push_back(std::move(stage));
    }
  }

  const profile::Profile& profile_;
  std::span<const PipeDreamLevel> levels_;
  Prefixes prefixes_;
  bool is_chain_ = false;
  std::vector<double> seconds_, param_bytes_, crossing_bytes_;  // per prefix
  std::vector<std::vector<int>> subsets_;                       // per prefix, in order
  std::vector<std::vector<double>> group_seconds_;              // per level but the last: [begin][end]
};

}  // namespace

PipeDreamPlan pipedream_plan(const profile::Profile& profile, std::span<const PipeDreamLevel> levels) {
  if (profile.operators.empty()) fail_input("the profile has no operators");
  if (levels.empty()) fail_input("a cluster has at least one level of devices");
  for (const PipeDreamLevel& level : levels) {
    if (level.workers < 1) fail_input("a level has {} devices; write at least 1", level.workers);
    if (!(level.bytes_per_s > 0) || !std::isfinite(level.bytes_per_s)) {
      fail_input("a level has a bandwidth of {} bytes per second; write more than 0", level.bytes_per_s);
    }
  }
  return Planner(profile, levels).plan();
}

}  // namespace millrace::plan
