#include "cli/elastic.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/planning.h"
#include "cli/together.h"
#include "millrace/base/error.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"
#include "millrace/plan/filling_cache.h"
#include "millrace/plan/grow_batch.h"
#include "millrace/plan/planner.h"

namespace millrace::cli {
namespace {

using plan::Candidate;

// A cluster of its first so many devices, joined by the links they have.
plan::Cluster first_of(plan::Cluster cluster, size_t count) {
  const size_t there = cluster.devices.size();
  cluster.devices.resize(count, cluster.devices[0]);
  std::vector<plan::Link> matrix;
  for (size_t row = 0; row < count && row < there && !cluster.matrix.empty(); ++row) {
    const auto begin = cluster.matrix.begin() + static_cast<std::ptrdiff_t>(row * there);
    matrix.insert(matrix.end(), begin, begin + static_cast<std::ptrdiff_t>(std::min(count, there)));
  }
  cluster.matrix = count <= there ? std::move(matrix) : std::vector<plan::Link>();
  size_t product = 1;
  std::vector<plan::Level> levels;
  for (plan::Level& level : cluster.levels) {
    if (product >= count) break;
    level.group = static_cast<int>(std::min<size_t>(level.group, (count + product - 1) / product));
    product *= static_cast<size_t>(level.group);
    levels.push_back(level);
  }
  if (product < count && !levels.empty()) levels.back().group = static_cast<int>(count * levels.back().group / product);
  cluster.levels = std::move(levels);
  return cluster;
}

// Plans for the devices that the job began with.
class ElasticPlanner {
 public:
  ElasticPlanner(const job::Job& job, const comm::Process& process)
      : first_(plan::make_plan(job, model::training_graph(job, 1), process.size())) {
    if (graph::num_layers(model::training_graph(job, 1)) == 0) {
      fail_input("elastic.freeze: {} has no layers that could be frozen; write elastic.freeze: off", job.model.name);
    }
    if (!job.elastic.pipe) return;
    cluster_ = job.parallel.cluster.empty() ? find_cluster("local", job) : plan::read_cluster(job.parallel.cluster);
    keep_devices();
    profiles_ = find_profiles(job, cluster_, {});
  }

  runtime::NextPlan next(const job::Job& now, int frozen, int kept) const {
    runtime::NextPlan next;
    next.job = now;
    next.job.model.frozen = frozen;
    const graph::Graph graph = model::training_graph(next.job, 1);
    if (!now.elastic.pipe) {
      plan::make_plan(next.job, graph, first_.pipeline.num_workers);  // refuses what cannot be
      return next;
    }
    const std::optional<Candidate> as_before = candidate(next.job, graph);
    std::optional<Candidate> best = fastest(next.job);
    // Another plan has to be worth its change.
    constexpr double kWorthwhile = 0.02;
    if (!best || (as_before && as_before->fits() &&
                  best->prediction.step_s > (1 - kWorthwhile) * as_before->prediction.step_s)) {
      best = as_before;
    }
    if (!best || !best->fits()) {
      fail_input("no plan for it fits: {}", best ? best->prediction.refusal : "none was found");
    }
    next.job.parallel = best->parallel;
    next.words = to_text(*best);
    next.predicted_step_s = best->prediction.step_s;
    next.predicted_before_s = as_before ? as_before->prediction.step_s : 0;
    next.predicted_filling_s = filling_s(next.job, best->plan, kept);
    if (now.elastic.grows) grow(now, *best, kept, next);
    return next;
  }

 private:
  // Where the memory for it is there.
  void grow(const job::Job& now, const Candidate& chosen, int kept, runtime::NextPlan& next) const {
    const int replicas = chosen.plan.pipeline.num_replicas(0);
    const int before =
        plan::make_plan(now, model::training_graph(now, 1), first_.pipeline.num_workers).pipeline.num_replicas(0);
    const std::optional<plan::GrownBatch> follows = plan::grow_batch(now, before, replicas);
    if (!follows) return;
    runtime::NextPlan grown = next;
    apply(*follows, grown.job);
    const std::optional<Candidate> made = candidate(grown.job, model::training_graph(grown.job, 1));
    if (!made || !made->fits()) return;
    grown.predicted_step_s = made->prediction.step_s;
    grown.predicted_filling_s = filling_s(grown.job, made->plan, kept);
    grown.predicted_before_s = 0;  // its steps were of another size
    grown.words +=
        fmt::format("; batch {} instead of {}, lr x {:.3g}", grown.job.batch, now.batch, follows->rate_factor);
    next = std::move(grown);
  }

  // A step of the first epoch, where there is a cache to be filled.
  double filling_s(const job::Job& job, const plan::Plan& plan, int kept) const {
    return job.elastic.cache ? plan::predict_filling(job, plan, profiles_, cluster_, kept).step_s : 0;
  }

  // The planner may use those the job names, no others.
  void keep_devices() {
    const size_t named = first_.devices.size(), there = cluster_.devices.size();
    if (there == 0) fail_input("elastic.pipe: {} has no devices", cluster_.name);
    if (there < named) {
      // Several workers of one core: each is as fast as its share of it.
      const double speed = static_cast<double>(there) / static_cast<double>(named);
      cluster_.devices.resize(named, cluster_.devices[0]);
      for (plan::Device& device : cluster_.devices) device.speed *= speed;
    }
    cluster_ = first_of(cluster_, named);
    for (size_t i = 0; i < named; ++i) cluster_.devices[i].id = first_.devices[i];
  }

  std::optional<Candidate> candidate(const job::Job& job, const graph::Graph& graph) const {
    try {
      Candidate made;
      made.parallel = job.parallel;
      made.plan = plan::make_plan(job, graph, first_.pipeline.num_workers);
      made.prediction = plan::predict(job, made.plan, profiles_, cluster_);
      return made;
    } catch (const std::invalid_argument&) {
      return std::nullopt;  // a stage would have nothing to learn
    }
  }

  std::optional<Candidate> fastest(const job::Job& job) const {
    if (job.elastic.dp) {
      try {
        return plan::choose(job, profiles_, cluster_, plan::synchronous_modes()).candidates[0];
      } catch (const std::invalid_argument&) {
        return std::nullopt;
      }
    }
    // As many replicas as at first, on any number of stages up to as many as at first.
    const int replicas = first_.pipeline.num_replicas(0);
    std::optional<Candidate> best;
    for (int stages = 1; stages <= first_.pipeline.num_stages(); ++stages) {
      const plan::Cluster part = first_of(cluster_, static_cast<size_t>(stages * replicas));
      plan::Choice choice;
      try {
        choice = plan::choose(job, profiles_, part, plan::synchronous_modes());
      } catch (const std::invalid_argument&) {
        continue;
      }
      for (const Candidate& one : choice.candidates) {
        const auto& made = one.plan.pipeline;
        const bool suits = made.num_stages() == stages &&
                           std::all_of(made.stages.begin(), made.stages.end(), [&](const auto& workers) {
                             return static_cast<int>(workers.size()) == replicas;
                           });
        if (!suits || !one.fits()) continue;
        if (!best || one.prediction.step_s < best->prediction.step_s) best = one;
      }
    }
    return best;
  }

  const plan::Plan first_;
  plan::Cluster cluster_;
  std::vector<profile::Profile> profiles_;
};

}  // namespace

runtime::Succession::Planner elastic_planner(const job::Job& job, const comm::Process& process) {
  const auto planner = std::make_shared<ElasticPlanner>(job, process);
  return [planner](const job::Job& now, int frozen, int kept) { return planner->next(now, frozen, kept); };
}

std::shared_ptr<runtime::PrefixCaches> make_caches(std::unique_ptr<comm::Process>& process, const job::Job& job) {
  const auto from_all = [&](const std::string& mine) {
    std::vector<std::string> lines;
    std::istringstream all(process->broadcast(fmt::format("{}\n", fmt::join(process->gather(mine), "\n"))));
    for (std::string line; std::getline(all, line);) lines.push_back(line);
    return lines;
  };
  const auto make = [&](const std::string& ticket) {
    return std::make_shared<runtime::PrefixCaches>(
        job, data::make_dataset(job, data::Split::Train)->size(),
        [](const std::string& line) { fmt::print(stderr, "{}\n", line); }, /*always=*/false, ticket);
  };
  const std::vector<std::string> hosts = from_all(comm::host_name());
  const auto first = static_cast<size_t>(std::find(hosts.begin(), hosts.end(), comm::host_name()) - hosts.begin());
  std::shared_ptr<runtime::PrefixCaches> caches;
  const bool makes = first == static_cast<size_t>(process->rank());
  together(process, [&] {
    if (makes) caches = make("");
  });
  const std::vector<std::string> tickets = from_all(makes ? caches->ticket() : std::string());
  together(process, [&] {
    if (!makes) caches = make(tickets[first]);
  });
  return caches;
}

plan::FreezeState first_freezing(const job::Job& job) {
  plan::FreezeState state;
  state.frozen = state.before = job.model.frozen;
  return state;
}

}  // namespace millrace::cli
