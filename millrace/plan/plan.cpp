#include "millrace/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "millrace/backend/style.h"
#include "millrace/base/error.h"
#include "millrace/job/stage_file.h"
#include "millrace/model/model.h"
#include "millrace/plan/partition.h"

namespace millrace::plan {
namespace {

using job::Mode;
using job::Replicas;
using schedule::Pipeline;

std::vector<int> cut(const job::Parallel& parallel, const graph::Graph& graph, const job::Placement& placement,
                     const std::vector<double>& op_seconds) {
  job::Balance balance = parallel.balance;
  if (!parallel.stage_file.empty()) {
    const std::vector<int> modules = job::read_stage_file(parallel.stage_file).module_to_stage;
    if (!has_generated_modules(graph, modules)) return cut_by_modules(graph, modules);
    // PipeDream cuts by cost, never by the number of operators.
    if (balance == job::Balance::Operators) balance = job::Balance::Flops;
  }
  if (!parallel.cuts.empty()) return cut_by_names(graph, parallel.cuts);
  if (placement.size() == 1) return {0};
  const std::vector<double> weights = balance == job::Balance::Operators ? operator_weights(graph)
                                      : balance == job::Balance::Flops   ? flop_weights(graph)
                                                                         : op_seconds;
  if (weights.empty()) {
    fail_input("parallel.balance: time is measured when a job runs; to plan without, write parallel.balance: flops");
  }
  if (weights.size() != graph.ops.size()) fail_run("{} costs for {} operators", weights.size(), graph.ops.size());
  if (!parallel.stage_weights.empty()) return cut_by_shares(weights, job::parse_stage_weights(parallel.stage_weights));
  std::vector<double> replicas;
  for (const auto& devices : placement) replicas.push_back(static_cast<double>(devices.size()));
  if (balance == job::Balance::Operators) return cut_by_shares(weights, replicas);
  return balanced_cut(weights, replicas);
}

std::vector<int> versions(const job::Parallel& parallel, const Pipeline& pipeline) {
  std::vector<int> kept;
  int replicas_left = 0;
  for (const auto& workers : pipeline.stages) replicas_left += static_cast<int>(workers.size());
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    const int replicas = pipeline.num_replicas(s);
    int versions = pipeline.num_stages() - s;
    if (pipeline.synchronous()) versions = 1;
    // PipeDream: as many minibatches in flight as keep all later replicas busy.
    else if (pipeline.replicas == Replicas::RoundRobin)
      versions = (replicas_left - 1) / replicas + 1;
    if (pipeline.mode == Mode::Ssp && !parallel.versions.empty()) versions = parallel.versions[s];
    replicas_left -= replicas;
    kept.push_back(versions);
  }
  return kept;
}

bool has_statistics(const graph::Graph& graph, const graph::StageSlice& slice) {
  for (graph::OpId op = slice.begin(); op < slice.end(graph); ++op) {
    for (graph::ParamId param : graph.ops[op].params) {
      if (graph.params[param].is_statistic() && !graph.params[param].frozen) return true;
    }
  }
  return false;
}

// Stages, from the first on, that stand still.
int frozen_stages(const graph::Graph& graph, const Plan& plan) {
  int frozen = 0;
  for (int s = 0; s < static_cast<int>(plan.first.size()); ++s) {
    const graph::StageSlice slice = plan.slice(s);
    const bool stands = std::all_of(graph.ops.begin() + slice.begin(), graph.ops.begin() + slice.end(graph),
                                    [](const graph::Op& op) { return op.frozen; });
    if (!stands) break;
    ++frozen;
  }
  return frozen;
}

// Gradients come back to a stage that has something to learn or stands behind one that has.
void check_learns(const graph::Graph& graph, const Plan& plan) {
  const int first = plan.pipeline.frozen;
  const graph::StageSlice slice = plan.slice(first);
  for (graph::OpId op = slice.begin(); op < slice.end(graph); ++op) {
    for (graph::ParamId param : graph.ops[op].params) {
      if (graph.params[param].trainable()) return;
    }
  }
  fail_input("parallel: stage {} ({} to {}) has no weights to train; cut the model {}", first,
             graph.ops[slice.begin()].name, graph.ops[slice.end(graph) - 1].name,
             graph.ops[0].frozen ? "where its frozen layers end, or later" : "later");
}

// A worker that also trains would hold up the stage that stands still, or it the worker.
void check_frozen(const Plan& plan) {
  const Pipeline& pipeline = plan.pipeline;
  if (pipeline.frozen == 0) return;
  if (!pipeline.synchronous()) {
    fail_input(
        "parallel.mode: a stage of frozen layers needs a mode that waits for all gradients of a step; write "
        "parallel.mode: 1f1b, or cut the model later");
  }
  std::set<int> seen;
  for (const auto& workers : pipeline.stages) {
    for (int worker : workers) {
      if (seen.insert(worker).second) continue;
      fail_input("parallel.placement: stage 0 is frozen and {}:{} runs several stages; place them apart",
                 plan.devices[worker].node, plan.devices[worker].device);
    }
  }
}

// Stages that make an update together or not at all must count the same updates, and a worker can wait for others only
// after it has computed for all of its stages.
void check_agreement(const job::Job& job, const graph::Graph& graph, const Plan& plan) {
  const Pipeline& pipeline = plan.pipeline;
  if (!pipeline.agrees_on_steps) return;
  std::string who, instead;
  if (graph.dtype == DType::F16) {
    who = "precision: fp16", instead = "precision: bf16";
  } else if (job.optimizer.clip_norm > 0) {
    who = "optimizer.clip_norm", instead = "optimizer.clip_norm: 0";
  } else if (model::update_rule(job).watches) {
    who = "elastic.freeze: gradient", instead = "elastic.freeze: schedule";
  } else {
    const Tie& tie = plan.ties[0];
    who =
        fmt::format("parallel: {}, which stages {} share,", graph.params[tie.param].name, fmt::join(tie.stages, ", "));
    instead = "other parallel.cuts";
  }
  const bool has_replicas = std::any_of(pipeline.stages.begin(), pipeline.stages.end(),
                                        [](const auto& workers) { return workers.size() > 1; });
  if (!pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin && has_replicas) {
    fail_input("{} needs stages that update equally often; write parallel.replicas: split or {}", who, instead);
  }
  std::vector<int> stages_of(pipeline.num_workers, 0);
  for (const auto& workers : pipeline.stages) {
    for (int worker : workers) {
      if (++stages_of[worker] == 1) continue;
      fail_input("{} needs one stage per device, {}:{} has several of {}; write {}, or place them apart", who,
                 plan.devices[worker].node, plan.devices[worker].device, graph.name, instead);
    }
  }
}

// What is said of blocks needs a model that has some.
void check_blocks(const job::Job& job, const graph::Graph& graph) {
  if (graph::has_blocks(graph)) return;
  if (job.parallel.recompute == job::Recompute::Block) {
    fail_input("memory.recompute is block and {} has no blocks; write memory.recompute: stage, or off", graph.name);
  }
  if (job.optimizer.layer_decay != 1) {
    fail_input("optimizer.layer_decay is {} and {} has no blocks to count layers by; write optimizer.layer_decay: 1",
               job.optimizer.layer_decay, graph.name);
  }
}

void find_ties(const graph::Graph& graph, Plan& plan) {
  const graph::StageSlice any = plan.slice(0);
  std::map<graph::ParamId, std::set<int>> stages;
  for (graph::OpId op = 0; op < static_cast<graph::OpId>(graph.ops.size()); ++op) {
    for (graph::ParamId param : graph.ops[op].params) stages[param].insert(any.stage_of(op));
  }
  for (const auto& [param, readers] : stages) {
    if (readers.size() == 1) continue;
    plan.shares_params = true;
    if (graph.params[param].trainable()) plan.ties.push_back({param, {readers.begin(), readers.end()}});
  }
}

bool reads(const graph::Graph& graph, const graph::StageSlice& slice, graph::ValueId value) {
  for (graph::OpId op = slice.begin(); op < slice.end(graph); ++op) {
    const std::vector<graph::ValueId>& inputs = graph.ops[op].inputs;
    if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) return true;
  }
  return false;
}

}  // namespace

bool needs_op_seconds(const job::Parallel& parallel) {
  return parallel.balance == job::Balance::Time && parallel.cuts.empty() && job::placed_stages(parallel).size() > 1;
}

Plan make_plan(const job::Job& job, const graph::Graph& graph, int num_processes,
               const std::vector<double>& op_seconds) {
  const job::Parallel& parallel = job.parallel;
  check_blocks(job, graph);
  job::Placement placement = job::placed_stages(parallel);
  if (placement.empty()) {
    placement.emplace_back();
    for (int i = 0; i < num_processes; ++i) placement[0].push_back({0, i});
  }
  Plan plan;
  std::set<job::DeviceId> devices;
  for (const auto& stage : placement) devices.insert(stage.begin(), stage.end());
  plan.devices.assign(devices.begin(), devices.end());
  plan.first = cut(parallel, graph, placement, op_seconds);
  plan.edges = graph::stage_edges(graph, plan.first);
  for (size_t s = 0; s < plan.first.size(); ++s) {
    const graph::StageSlice slice = plan.slice(static_cast<int>(s));
    plan.reads_features.push_back(reads(graph, slice, graph.features));
    plan.reads_labels.push_back(reads(graph, slice, graph.labels));
  }

  Pipeline& pipeline = plan.pipeline;
  pipeline.mode = parallel.mode;
  pipeline.replicas = parallel.replicas;
  pipeline.num_workers = static_cast<int>(plan.devices.size());
  pipeline.rows = job.batch / parallel.microbatches;
  pipeline.microbatches = parallel.microbatches;
  pipeline.multi_buffer = parallel.multi_buffer;
  pipeline.ahead = parallel.ahead;
  find_ties(graph, plan);
  pipeline.frozen = frozen_stages(graph, plan);
  // Those that stand still have nothing to agree on.
  const bool several_learn = static_cast<int>(placement.size()) - pipeline.frozen > 1;
  pipeline.agrees_on_steps =
      several_learn && (graph.dtype == DType::F16 || model::update_rule(job).sums_squares() || !plan.ties.empty());
  if (!parallel.shares.empty()) pipeline.shares = job::parse_shares(parallel.shares);
  for (const auto& stage : placement) {
    pipeline.stages.emplace_back();
    for (const job::DeviceId& device : stage) {
      const auto found = std::lower_bound(plan.devices.begin(), plan.devices.end(), device);
      pipeline.stages.back().push_back(static_cast<int>(found - plan.devices.begin()));
    }
  }
  for (const graph::StageEdge& edge : plan.edges) pipeline.edges.push_back({edge.from, edge.to});
  pipeline.versions = versions(parallel, pipeline);
  for (int s = 0; s < pipeline.num_stages(); ++s) pipeline.statistics.push_back(has_statistics(graph, plan.slice(s)));
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    for (int r = 0; r < pipeline.num_replicas(s); ++r) {
      if (plan.rows(s, r).size() > 0) continue;
      fail_input("batch: a micro-batch has {} rows and replica {} of the {} of stage {} none; write a larger batch{}",
                 pipeline.rows, r, pipeline.num_replicas(s), s,
                 pipeline.shares.empty() ? "" : " or parallel.shares nearer to each other");
    }
    const graph::Program program = training_program(
        graph, {parallel.microbatches, model::update_rule(job), true, plan.slice(s), backend::style_of(job.device)});
    const auto bytes = static_cast<size_t>(parallel.bucket_mib * (1 << 20));
    pipeline.buckets.push_back(std::max<int>(1, static_cast<int>(gradient_buckets(program, bytes).size())));
  }
  check_learns(graph, plan);
  check_frozen(plan);
  check_agreement(job, graph, plan);
  return plan;
}

std::vector<int> Plan::workers_of(const Tie& tie) const {
  std::vector<int> workers;
  for (int stage : tie.stages) {
    workers.insert(workers.end(), pipeline.stages[stage].begin(), pipeline.stages[stage].end());
  }
  return workers;
}

std::string to_text(const Plan& plan, const graph::Graph& graph) {
  std::string text;
  for (int s = 0; s < plan.pipeline.num_stages(); ++s) {
    const graph::StageSlice slice = plan.slice(s);
    std::vector<std::string> devices;
    for (int worker : plan.pipeline.stages[s]) {
      devices.push_back(fmt::format("{}:{}", plan.devices[worker].node, plan.devices[worker].device));
    }
    text += fmt::format("stage {} of {}: {} to {} ({} operators) on {}\n", s, plan.pipeline.num_stages(),
                        graph.ops[slice.begin()].name, graph.ops[slice.end(graph) - 1].name,
                        slice.end(graph) - slice.begin(), fmt::join(devices, ", "));
  }
  return text;
}

}  // namespace millrace::plan
