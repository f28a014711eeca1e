#include "millrace/plan/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "millrace/backend/style.h"
#include "millrace/base/error.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"
#include "millrace/plan/frozen_costs.h"
#include "millrace/plan/loading.h"
#include "millrace/plan/saving.h"
#include "millrace/plan/stage_memory.h"
#include "millrace/profile/describe.h"
#include "millrace/schedule/steady.h"

namespace millrace::plan {
namespace {

using graph::Pass;
using schedule::Pipeline;
using schedule::ReplicaCosts;

// A model at one number of rows, with what its operators cost there.
struct Sized {
  graph::Graph graph;
  profile::Profile profile;
};

// An update reads weight, gradient and velocity and writes two of them; adding to a sum reads two and writes one.
constexpr double kAccumulateShare = 3.0 / 5.0;

// An operator's time in a pass, shared by the nodes it has there (a forward that is run again takes its time again).
// What a profile of one micro-batch has not, adding gradients up, takes the part of the update's time that it touches
// of the memory.
std::vector<double> node_seconds(const graph::Program& program, const profile::Profile& profile) {
  std::map<std::pair<graph::OpId, Pass>, int> count;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const graph::Node& node = program.nodes[i];
    const bool again = node.pass == Pass::Forward && i >= program.first_backward;
    if (node.kind != graph::OpKind::Accumulate && !again) ++count[{node.op, node.pass}];
  }
  std::map<graph::OpId, int> sums;
  for (const graph::Node& node : program.nodes) sums[node.op] += node.kind == graph::OpKind::Accumulate;
  std::vector<double> seconds;
  for (const graph::Node& node : program.nodes) {
    if (node.kind == graph::OpKind::Accumulate) {
      seconds.push_back(kAccumulateShare * profile.operators[node.op].update.median / sums.at(node.op));
      continue;
    }
    seconds.push_back(seconds_of(profile.operators[node.op], node.pass).median / count.at({node.op, node.pass}));
  }
  return seconds;
}

class Predictor {
 public:
  Predictor(const job::Job& job, const Plan& plan, const std::vector<profile::Profile>& profiles,
            const Cluster& cluster)
      : job_(job),
        plan_(plan),
        pipeline_(plan.pipeline),
        profiles_(profiles),
        cluster_(cluster),
        dataset_(data::make_dataset(job, data::Split::Train)) {
    for (const job::DeviceId& id : plan.devices) device_.push_back(find_device(id));
  }

  Prediction predict() {
    made_.shape = steady_lists(pipeline_);
    made_.worker_bytes.assign(pipeline_.num_workers, 0);
    snapshot_bytes_.assign(pipeline_.num_workers, 0);
    made_.costs.links.assign(pipeline_.num_workers, std::vector<schedule::Link>(pipeline_.num_workers));
    for (int a = 0; a < pipeline_.num_workers; ++a) {
      for (int b = 0; b < pipeline_.num_workers; ++b) {
        if (a == b) continue;
        made_.costs.links[a][b] = {cluster_.latency_s(device_[a], device_[b]),
                                   cluster_.bytes_per_s(device_[a], device_[b])};
      }
    }
    for (int s = 0; s < pipeline_.num_stages(); ++s) add_stage(s);
    for (const auto& [stage, sums] : occupying_sums_) occupy(stage, sums);
    for (const Tie& tie : plan_.ties) add_tie(tie);
    for (const graph::StageEdge& edge : plan_.edges) add_edge(edge);
    made_.step_s = steady_step_s(made_.shape, made_.costs);
    made_.samples_per_s = static_cast<double>(job_.batch) / made_.step_s;
    double busy_s = 0;
    for (const double seconds : worker_seconds(pipeline_, made_.costs)) busy_s += seconds;
    made_.bubble_share = std::max(0.0, 1 - busy_s / (made_.step_s * pipeline_.num_workers));
    add_snapshots();
    check_memory();
    return std::move(made_);
  }

 private:
  int find_device(const job::DeviceId& id) const {
    for (size_t d = 0; d < cluster_.devices.size(); ++d) {
      if (cluster_.devices[d].id == id) return static_cast<int>(d);
    }
    fail_input("the plan runs on device {}:{}, which cluster {} has not: it has {}", id.node, id.device, cluster_.name,
               cluster_.devices.size() == 1 ? "one device, 0:0" : fmt::format("{} devices", cluster_.devices.size()));
  }

  const Sized& sized(int64_t rows) {
    const auto found = sizes_.find(rows);
    if (found != sizes_.end()) return found->second;
    Sized made{model::training_graph(job_, rows), at_rows(profiles_, rows)};
    if (made.graph.ops.size() != made.profile.operators.size()) {
      fail_input("the profile is of {} with {} operators; this job's model is {} with {}", made.profile.model,
                 made.profile.operators.size(), made.graph.name, made.graph.ops.size());
    }
    price_frozen(job_, made.graph, made.profile);
    return sizes_.emplace(rows, std::move(made)).first->second;
  }

  bool recomputes(int stage) const {
    return job_.parallel.recompute == job::Recompute::Stage && stage + 1 < pipeline_.num_stages();
  }

  graph::TrainingOptions training_options(const graph::Graph& graph, int stage) const {
    const graph::Style style = backend::style_of(job_.device);
    const graph::UpdateRule rule = model::update_rule(job_);
    const bool keeps =
        graph::keeps_gradients(graph, style, rule, pipeline_.num_replicas(stage) > 1, made_.shape.slots[stage]);
    return {pipeline_.synchronous() ? pipeline_.microbatches : 1, rule, keeps, plan_.slice(stage), style,
            job_.parallel.recompute == job::Recompute::Block};
  }

  void add_stage(int stage) {
    StagePrediction& predicted = made_.stages.emplace_back();
    made_.costs.replicas.emplace_back();
    for (int r = 0; r < pipeline_.num_replicas(stage); ++r) {
      const int worker = pipeline_.stages[stage][r];
      const Sized& size = sized(plan_.rows(stage, r).size());
      const graph::Program program = training_program(size.graph, training_options(size.graph, stage));
      ReplicaCosts costs =
          replica_costs(program, size.profile, pipeline_.buckets[stage], cluster_.devices[device_[worker]].speed);
      if (recomputes(stage) && made_.shape.slots[stage] > 1) {
        costs.input_grad_s += costs.forward_s;
        if (!costs.backward_part_s.empty()) costs.backward_part_s[0] += costs.forward_s;
      }
      made_.costs.replicas.back().push_back(costs);
      predicted.compute_s = std::max(predicted.compute_s, replica_seconds(pipeline_, stage, costs));
      const StageMemory memory =
          stage_memory(size.graph, size.profile,
                       {training_options(size.graph, stage),
                        {made_.shape.slots[stage], made_.shape.gradient_slots, pipeline_.versions[stage]},
                        job_.data.test_samples > 0,
                        recomputes(stage)});
      if (memory.total() > predicted.memory.total()) predicted.memory = memory;
      made_.worker_bytes[worker] +=
          memory.total() + static_cast<double>(loading_bytes(job_, *dataset_, plan_, stage, r) +
                                               saving_bytes(job_, size.graph, plan_, stage, r));
      if (copies_on_device(job_, r)) snapshot_bytes_[worker] += memory.state;
      if (r > 0) continue;
      add_sums(stage, program);
    }
  }

  ReplicaCosts replica_costs(const graph::Program& program, const profile::Profile& profile, int num_buckets,
                             double speed) const {
    std::vector<double> seconds = node_seconds(program, profile);
    for (double& s : seconds) s /= speed;
    ReplicaCosts costs;
    for (size_t i = 0; i < program.first_backward; ++i) costs.forward_s += seconds[i];
    for (size_t i = program.first_backward; i < program.first_update; ++i) {
      (program.nodes[i].pass == Pass::WeightGrad ? costs.weight_grad_s : costs.input_grad_s) += seconds[i];
    }
    for (size_t i = program.first_update; i < program.nodes.size(); ++i) costs.step_s += seconds[i];
    const std::vector<graph::Bucket> buckets = gradient_buckets(program, bucket_bytes());
    if (static_cast<int>(buckets.size()) != num_buckets) return costs;  // not reduced
    size_t begin = program.first_backward;
    std::map<graph::ParamId, size_t> bucket_of;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const size_t end = b + 1 == buckets.size() ? program.first_update : buckets[b].end;
      double part_s = 0;
      for (size_t i = begin; i < end; ++i) part_s += seconds[i];
      costs.backward_part_s.push_back(part_s);
      for (graph::BufferId id : buckets[b].gradients) bucket_of[program.buffers[id].param] = b;
      begin = end;
    }
    costs.step_part_s.assign(buckets.size(), 0);
    for (size_t i = program.first_update; i < program.nodes.size(); ++i) {
      for (graph::BufferId id : program.nodes[i].writes) {
        const auto bucket = bucket_of.find(program.buffers[id].param);
        if (bucket == bucket_of.end()) continue;
        costs.step_part_s[bucket->second] += seconds[i];
        break;
      }
    }
    return costs;
  }

  size_t bucket_bytes() const { return static_cast<size_t>(job_.parallel.bucket_mib * (1 << 20)); }

  void add_sums(int stage, const graph::Program& program) {
    std::vector<double>& seconds = made_.costs.reduce_s.emplace_back(pipeline_.buckets[stage], 0.0);
    const int replicas = pipeline_.num_replicas(stage);
    if (replicas == 1) return;
    std::vector<int> devices;
    for (int worker : pipeline_.stages[stage]) devices.push_back(device_[worker]);
    const SumCost cost = sum_cost(cluster_, devices);
    const std::vector<graph::Bucket> buckets = gradient_buckets(program, bucket_bytes());
    double all_bytes = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      double bytes = 0;
      for (graph::BufferId id : buckets[b].gradients) {
        bytes += static_cast<double>(program.buffers[id].shape.elements()) * sizeof(float);
      }
      seconds[b] = bytes * cost.per_byte + cost.latency_s;
      all_bytes += bytes;
    }
    if (cost.occupies) occupying_sums_[stage] = seconds;
    for (int r = 0; r < replicas; ++r) {
      const double passed = 2.0 * (replicas - 1) / replicas * all_bytes;
      made_.links.push_back({pipeline_.stages[stage][r], pipeline_.stages[stage][(r + 1) % replicas], passed});
    }
  }

  // The gradients of a parameter that stages share are summed within their last step.
  void add_tie(const Tie& tie) {
    const std::vector<int> workers = plan_.workers_of(tie);
    std::vector<int> devices;
    for (int worker : workers) devices.push_back(device_[worker]);
    const SumCost cost = sum_cost(cluster_, devices);
    const Shape& shape = sizes_.begin()->second.graph.params[tie.param].shape;
    const double bytes = static_cast<double>(shape.elements()) * sizeof(float);
    const double seconds = bytes * cost.per_byte + cost.latency_s;
    for (int stage : tie.stages) {
      for (ReplicaCosts& replica : made_.costs.replicas[stage]) {
        if (!replica.step_part_s.empty()) replica.step_part_s.back() += seconds;
        replica.step_s += seconds;
      }
    }
    const auto members = static_cast<double>(workers.size());
    for (size_t w = 0; w < workers.size(); ++w) {
      made_.links.push_back({workers[w], workers[(w + 1) % workers.size()], 2 * (members - 1) / members * bytes});
    }
  }

  // Sums that the devices do themselves come before the updates that need them.
  void occupy(int stage, const std::vector<double>& sums) {
    for (ReplicaCosts& replica : made_.costs.replicas[stage]) {
      for (size_t b = 0; b < sums.size(); ++b) {
        if (!replica.step_part_s.empty()) replica.step_part_s[b] += sums[b];
        replica.step_s += sums[b];
      }
    }
    made_.costs.reduce_s[stage].assign(sums.size(), 0.0);
  }

  void add_edge(const graph::StageEdge& edge) {
    const Sized& size = sized(pipeline_.rows);
    double bytes = 0;
    for (graph::ValueId value : edge.values) {
      bytes += static_cast<double>(size.profile.operators[size.graph.producer(value)].output_bytes);
    }
    made_.costs.message_bytes.push_back({bytes, bytes});
    const double updates = pipeline_.synchronous() ? pipeline_.microbatches : 1;
    for (int a = 0; a < pipeline_.num_replicas(edge.from); ++a) {
      for (int b = 0; b < pipeline_.num_replicas(edge.to); ++b) {
        const schedule::Rows from = plan_.rows(edge.from, a), to = plan_.rows(edge.to, b);
        double share = static_cast<double>(std::min(from.end, to.end) - std::max(from.begin, to.begin)) /
                       static_cast<double>(pipeline_.rows);
        if (pipeline_.replicas == job::Replicas::RoundRobin) {
          share = 1.0 / (pipeline_.num_replicas(edge.from) * pipeline_.num_replicas(edge.to));
        }
        const int sender = pipeline_.stages[edge.from][a], receiver = pipeline_.stages[edge.to][b];
        if (share <= 0 || sender == receiver) continue;
        made_.links.push_back({sender, receiver, share * bytes * updates});
        if (pipeline_.learns(edge.from)) made_.links.push_back({receiver, sender, share * bytes * updates});
      }
    }
  }

  // Where there is room beside all else.
  void add_snapshots() {
    for (int w = 0; w < pipeline_.num_workers; ++w) {
      const double with = made_.worker_bytes[w] + snapshot_bytes_[w];
      if (with <= static_cast<double>(cluster_.devices[device_[w]].memory_bytes)) made_.worker_bytes[w] = with;
    }
  }

  void check_memory() {
    for (int w = 0; w < pipeline_.num_workers; ++w) {
      const Device& device = cluster_.devices[device_[w]];
      if (made_.worker_bytes[w] <= static_cast<double>(device.memory_bytes)) continue;
      constexpr double kMiB = 1 << 20;
      made_.refusal =
          fmt::format("device {}:{} would hold {:.0f} MiB and has {:.0f} MiB", device.id.node, device.id.device,
                      made_.worker_bytes[w] / kMiB, static_cast<double>(device.memory_bytes) / kMiB);
      return;
    }
  }

  const job::Job& job_;
  const Plan& plan_;
  const Pipeline& pipeline_;
  const std::vector<profile::Profile>& profiles_;
  const Cluster& cluster_;
  std::unique_ptr<data::Dataset> dataset_;
  std::vector<int> device_;  // of the cluster, per worker
  std::map<int64_t, Sized> sizes_;
  std::map<int, std::vector<double>> occupying_sums_;  // per stage and bucket
  std::vector<double> snapshot_bytes_;                 // per worker: in its device's memory
  Prediction made_;
};

}  // namespace

Prediction predict(const job::Job& job, const Plan& plan, const std::vector<profile::Profile>& profiles,
                   const Cluster& cluster) {
  return Predictor(job, plan, profiles, cluster).predict();
}

}  // namespace millrace::plan
