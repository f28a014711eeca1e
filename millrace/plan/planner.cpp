#include "millrace/plan/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/model/model.h"
#include "millrace/plan/frozen_costs.h"
#include "millrace/plan/search.h"

namespace millrace::plan {
namespace {

using job::Mode;

constexpr int kMostMicrobatches = 64;
constexpr int kShareUnits = 1000;
constexpr int kTailsPredicted = 6;
constexpr double kWorthwhile = 0.05;       // predictions are not nearer than that
constexpr double kBucketMib[] = {4, 100};  // beside the job's own

// "0:0-6,1:0": neighbours on one node as a range.
std::string stage_text(const std::vector<job::DeviceId>& devices) {
  std::string text;
  for (size_t begin = 0; begin < devices.size();) {
    size_t end = begin + 1;
    while (end < devices.size() && devices[end].node == devices[begin].node &&
           devices[end].device == devices[end - 1].device + 1) {
      ++end;
    }
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", devices[begin].node, devices[begin].device);
    if (end > begin + 1) text += fmt::format("-{}", devices[end - 1].device);
    begin = end;
  }
  return text;
}

struct Shape {
  std::vector<int> first;                 // operator of each stage
  std::vector<std::vector<int>> devices;  // of each stage
  std::vector<std::vector<int>> shares;   // empty: even
};

class Planner {
 public:
  Planner(const job::Job& job, const std::vector<profile::Profile>& profiles, const Cluster& cluster)
      : job_(job), profiles_(profiles), cluster_(cluster), graph_(model::training_graph(job, 1)) {}

  Choice choose(const std::vector<Mode>& modes) {
    for (Mode mode : modes) {
      for (int microbatches : microbatch_counts(mode)) consider(mode, microbatches);
    }
    try_buckets();
    Choice choice;
    choice.candidates = std::move(candidates_);
    std::stable_sort(choice.candidates.begin(), choice.candidates.end(), [](const auto& a, const auto& b) {
      if (a.fits() != b.fits()) return a.fits();
      return a.prediction.step_s < b.prediction.step_s;
    });
    if (choice.candidates.empty() || !choice.candidates[0].fits()) {
      fail_input("{}: cannot run on {}: {}", job_.name, cluster_.name, refusal_);
    }
    // What is hardly faster is not worth being less simple, or sending more.
    const double enough_s = choice.candidates[0].prediction.step_s * (1 + kWorthwhile);
    auto simplest = choice.candidates.begin();
    for (auto it = simplest; it != choice.candidates.end() && it->fits() && it->prediction.step_s <= enough_s; ++it) {
      if (is_simpler(*it, *simplest)) simplest = it;
    }
    std::rotate(choice.candidates.begin(), simplest, simplest + 1);
    name_baselines(choice);
    return choice;
  }

 private:
  std::vector<int> microbatch_counts(Mode mode) const {
    if (mode == Mode::PipeDream || mode == Mode::Ssp) return {1};
    if (job_.parallel.microbatches > 1) return {job_.parallel.microbatches};
    std::vector<int> counts;
    // Each at least half as many again as the one before.
    for (int m = 1; m <= kMostMicrobatches && m <= job_.batch; ++m) {
      if (job_.batch % m == 0 && (counts.empty() || 2 * m >= 3 * counts.back())) counts.push_back(m);
    }
    return counts;
  }

  profile::Profile profile_at(int64_t rows) const {
    profile::Profile profile = at_rows(profiles_, rows);
    price_frozen(job_, graph_, profile);
    return profile;
  }

  // Stale weights change what is learnt; stages, and devices with several of them, are more that can wait.
  static int complexity(const Candidate& candidate) {
    const schedule::Pipeline& pipeline = candidate.plan.pipeline;
    int replicas = 0;
    for (const auto& workers : pipeline.stages) replicas += static_cast<int>(workers.size());
    const int parts = pipeline.num_stages() == 1 && pipeline.microbatches > 1 ? 1 : 0;
    return (pipeline.synchronous() ? 0 : 1000) + 10 * (pipeline.num_stages() - 1) + replicas - pipeline.num_workers +
           parts;
  }

  static double sent_bytes(const Candidate& candidate) {
    double bytes = 0;
    for (const LinkLoad& link : candidate.prediction.links) bytes += link.bytes;
    return bytes;
  }

  static bool is_simpler(const Candidate& a, const Candidate& b) {
    if (complexity(a) != complexity(b)) return complexity(a) < complexity(b);
    return sent_bytes(a) < 0.9 * sent_bytes(b);
  }

  void consider(Mode mode, int microbatches) {
    const int64_t rows = job_.batch / microbatches;
    if (mode != Mode::Dp && (cluster_.devices.size() < 2 || graph_.ops.size() < 2)) return;
    CostOptions options;
    options.mode = mode;
    options.microbatches = microbatches;
    options.optimizer_slots = job_.optimizer.momentum > 0 ? 1 : 0;
    const SearchResult found = search(profile_at(rows), cluster_, options);
    if (!found.refusal.empty() && refusal_.empty()) refusal_ = found.refusal;
    const bool one_stage_only = mode == Mode::Dp;
    const auto add_plan = [&](const SearchPlan& plan) {
      if (one_stage_only == (plan.stages.size() == 1)) add(mode, microbatches, shape_of(plan));
    };
    add_plan(found.data_parallel);
    if (found.best) add_plan(*found.best);
    if (found.runner_up) add_plan(*found.runner_up);
    if (found.straight_pipeline) add_plan(*found.straight_pipeline);
    if (mode == Mode::OneFOneB || mode == Mode::Ssp) add_shared_tails(mode, microbatches, rows);
  }

  static Shape shape_of(const SearchPlan& plan) {
    Shape shape;
    for (const SearchStage& stage : plan.stages) {
      shape.first.push_back(stage.first);
      shape.devices.push_back(stage.devices);
    }
    return shape;
  }

  // The front of the model on all devices, its tail on one of them, which takes fewer rows of the front instead: what
  // pays where the tail has most of the weights and little of the work.
  void add_shared_tails(Mode mode, int microbatches, int64_t rows) {
    const int num_devices = static_cast<int>(cluster_.devices.size());
    if (num_devices < 2) return;
    const profile::Profile profile = profile_at(rows);
    const StageCosts costs(profile, cluster_, {.mode = mode, .microbatches = microbatches});
    const int n = costs.num_operators();
    std::vector<int> all(static_cast<size_t>(num_devices));
    std::iota(all.begin(), all.end(), 0);
    double speed = 0;
    for (const Device& device : cluster_.devices) speed += device.speed;
    const SumCost sum = sum_cost(cluster_, all);
    struct Tail {
      double cost_s;
      int cut;
      std::vector<int> shares;
    };
    std::vector<Tail> tails;
    double params = 0;
    for (int cut = 1; cut < n; ++cut) {
      params += static_cast<double>(profile.operators[cut - 1].param_bytes);
      if (!costs.may_cut(cut)) continue;
      // Every device is busy as long: the last with the tail and its rows of the front.
      const double front_s = costs.seconds(0, cut), tail_s = costs.seconds(cut, n);
      const double last_speed = cluster_.devices.back().speed;
      const double busy_s = (front_s + tail_s) / speed;
      const double last_share = (busy_s * last_speed - tail_s) / front_s;
      if (!(last_share * static_cast<double>(rows) >= 1)) continue;
      Tail tail{busy_s * microbatches + params * sum.per_byte, cut, {}};
      for (int d = 0; d < num_devices; ++d) {
        const double share = d + 1 == num_devices ? last_share : busy_s * cluster_.devices[d].speed / front_s;
        tail.shares.push_back(std::max(1, static_cast<int>(std::lround(share * kShareUnits))));
      }
      tails.push_back(std::move(tail));
    }
    std::stable_sort(tails.begin(), tails.end(), [](const Tail& a, const Tail& b) { return a.cost_s < b.cost_s; });
    for (size_t i = 0; i < tails.size() && i < kTailsPredicted; ++i) {
      add(mode, microbatches, {{0, tails[i].cut}, {all, {num_devices - 1}}, {tails[i].shares, {1}}});
    }
  }

  // Devices of several speeds share the rows by speed.
  std::vector<std::vector<int>> shares_by_speed(const Shape& shape) const {
    std::vector<std::vector<int>> shares;
    bool uneven = false;
    for (const auto& devices : shape.devices) {
      shares.emplace_back();
      for (int d : devices) {
        shares.back().push_back(std::max(1, static_cast<int>(std::lround(cluster_.devices[d].speed * kShareUnits))));
        uneven |= cluster_.devices[d].speed != cluster_.devices[devices[0]].speed;
      }
    }
    return uneven ? shares : std::vector<std::vector<int>>();
  }

  static std::string shares_text(const std::vector<std::vector<int>>& shares) {
    std::string text;
    for (const auto& stage : shares) {
      int common = 0;
      for (int share : stage) common = std::gcd(common, share);
      std::vector<int> reduced;
      for (int share : stage) reduced.push_back(share / common);
      text += fmt::format("{}{}", text.empty() ? "" : ".", fmt::join(reduced, ":"));
    }
    return text;
  }

  void add(Mode mode, int microbatches, Shape shape) {
    job::Parallel parallel = job_.parallel;
    parallel.mode = mode;
    parallel.replicas = mode == Mode::PipeDream ? job::Replicas::RoundRobin : job::Replicas::Split;
    parallel.microbatches = microbatches;
    parallel.stage_weights.clear();
    parallel.stage_file.clear();
    parallel.balance = job::Balance::Operators;
    parallel.versions.clear();
    parallel.ahead.clear();
    parallel.recompute = job::Recompute::Off;
    parallel.cuts.clear();
    parallel.placement.clear();
    parallel.shares.clear();
    for (size_t s = 0; s < shape.first.size(); ++s) {
      std::vector<job::DeviceId> ids;
      for (int d : shape.devices[s]) ids.push_back(cluster_.devices[d].id);
      parallel.placement += fmt::format("{}{}", s > 0 ? "." : "", stage_text(ids));
      if (s > 0) parallel.cuts.push_back(graph_.ops[shape.first[s]].name);
    }
    if (parallel.replicas == job::Replicas::Split) {
      if (shape.shares.empty()) shape.shares = shares_by_speed(shape);
      parallel.shares = shares_text(shape.shares);
    }
    add(parallel);
    for (const job::Recompute how : ways_to_recompute(shape)) {
      if (candidates_.empty() || candidates_.back().parallel != parallel || candidates_.back().fits()) break;
      parallel.recompute = how;
      add(parallel);
    }
    parallel.recompute = job::Recompute::Off;
    // Where summing takes long, a stage that does not run ahead sums one minibatch's gradients during the next.
    const bool sums =
        std::any_of(shape.devices.begin(), shape.devices.end(), [](const auto& d) { return d.size() > 1; });
    if (mode != Mode::Ssp || !sums) return;
    parallel.ahead.assign(shape.first.size(), 0);
    add(parallel);
  }

  // What may make a plan fit that does not, cheapest first; none where the job says what is recomputed.
  std::vector<job::Recompute> ways_to_recompute(const Shape& shape) const {
    if (job_.parallel.recompute != job::Recompute::Auto) {
      return job_.parallel.recompute == job::Recompute::Off ? std::vector<job::Recompute>{}
                                                            : std::vector{job_.parallel.recompute};
    }
    std::vector<job::Recompute> ways;
    if (shape.first.size() > 1) ways.push_back(job::Recompute::Stage);
    if (graph::has_blocks(graph_)) ways.push_back(job::Recompute::Block);
    return ways;
  }

  Candidate predicted(const job::Parallel& parallel) const {
    job::Job job = job_;
    job.parallel = parallel;
    Candidate candidate;
    candidate.parallel = parallel;
    candidate.plan = make_plan(job, graph_, static_cast<int>(cluster_.devices.size()));
    candidate.prediction = predict(job, candidate.plan, profiles_, cluster_);
    return candidate;
  }

  void add(const job::Parallel& parallel) {
    for (const Candidate& known : candidates_) {
      if (known.parallel == parallel) return;
    }
    try {
      candidates_.push_back(predicted(parallel));
      if (!candidates_.back().fits() && refusal_.empty()) refusal_ = candidates_.back().prediction.refusal;
    } catch (const std::invalid_argument& error) {
      // A replica without rows, a first stage without weights: no plan.
      if (refusal_.empty()) refusal_ = error.what();
    }
  }

  // For what may still be chosen.
  void try_buckets() {
    double best_s = std::numeric_limits<double>::infinity();
    for (const Candidate& candidate : candidates_) {
      if (candidate.fits()) best_s = std::min(best_s, candidate.prediction.step_s);
    }
    for (Candidate& candidate : candidates_) {
      const auto& stages = candidate.plan.pipeline.stages;
      const bool sums =
          std::any_of(stages.begin(), stages.end(), [](const auto& workers) { return workers.size() > 1; });
      if (!sums || !candidate.fits() || candidate.prediction.step_s > best_s * (1 + kWorthwhile)) continue;
      for (double mib : kBucketMib) {
        job::Parallel parallel = candidate.parallel;
        parallel.bucket_mib = mib;
        Candidate other = predicted(parallel);
        if (other.fits() && other.prediction.step_s < candidate.prediction.step_s) candidate = std::move(other);
      }
    }
  }

  void name_baselines(Choice& choice) const {
    const auto& all = choice.candidates;
    const Candidate& best = all[0];
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      const schedule::Pipeline& pipeline = all[i].plan.pipeline;
      const bool on_all = pipeline.num_workers == static_cast<int>(cluster_.devices.size());
      bool straight = pipeline.num_stages() > 1 && pipeline.num_stages() == pipeline.num_workers;
      for (const auto& workers : pipeline.stages) straight &= workers.size() == 1;
      if (choice.data_parallel < 0 && on_all && pipeline.num_stages() == 1) choice.data_parallel = i;
      if (choice.straight_pipeline < 0 && straight &&
          (on_all || pipeline.num_stages() == static_cast<int>(graph_.ops.size()))) {
        choice.straight_pipeline = i;
      }
      const bool other =
          all[i].parallel.mode != best.parallel.mode || pipeline.num_stages() != best.plan.pipeline.num_stages();
      if (choice.runner_up < 0 && other && all[i].fits()) choice.runner_up = i;
    }
  }

  const job::Job& job_;
  const std::vector<profile::Profile>& profiles_;
  const Cluster& cluster_;
  const graph::Graph graph_;
  std::vector<Candidate> candidates_;
  std::string refusal_;  // of the first that did not fit
};

}  // namespace

std::vector<Mode> synchronous_modes() { return {Mode::Dp, Mode::OneFOneB}; }

Choice choose(const job::Job& job, const std::vector<profile::Profile>& profiles, const Cluster& cluster,
              const std::vector<Mode>& modes) {
  return Planner(job, profiles, cluster).choose(modes);
}

std::string to_text(const Candidate& candidate) {
  job::Job job;
  job.parallel = candidate.parallel;
  std::vector<std::string> stages;
  std::vector<job::DeviceId> ids;
  for (const auto& workers : candidate.plan.pipeline.stages) {
    ids.clear();
    for (int worker : workers) ids.push_back(candidate.plan.devices[worker]);
    stages.push_back(stage_text(ids));
  }
  std::string text = job::find_field("parallel.mode")->write(job);
  if (candidate.plan.pipeline.synchronous() && candidate.parallel.microbatches > 1) {
    text += fmt::format(", {} micro-batches", candidate.parallel.microbatches);
  }
  // Of many stages the first and the last.
  constexpr size_t kShown = 3;
  const std::vector<std::string>& cuts = candidate.parallel.cuts;
  if (stages.size() > kShown + 1) {
    return text + fmt::format(", {} stages on {} | .. | {}, cut at {}, ..", stages.size(), stages.front(),
                              stages.back(), cuts.front());
  }
  if (candidate.parallel.recompute == job::Recompute::Stage) text += ", recomputing stages";
  if (candidate.parallel.recompute == job::Recompute::Block) text += ", recomputing blocks";
  text += fmt::format(", on {}", fmt::join(stages, " | "));
  if (!cuts.empty()) text += fmt::format(", cut at {}", fmt::join(cuts, ", "));
  return text;
}

}  // namespace millrace::plan
