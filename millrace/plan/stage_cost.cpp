#include "millrace/plan/stage_cost.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::plan {
namespace {

void check(const profile::Profile& profile, const Cluster& cluster, const CostOptions& options) {
  if (profile.operators.empty()) fail_input("the profile has no operators");
  if (cluster.devices.empty()) fail_input("the cluster has no devices");
  if (options.microbatches < 1) fail_input("{} micro-batches; write at least 1", options.microbatches);
  int64_t product = 1;
  for (const Level& level : cluster.levels) {
    product *= level.group;
    if (level.group > 1 && !(level.bytes_per_s > 0)) {
      fail_input("level \"{}\" joins {} members at {} bytes per second: the cluster is disconnected", level.name,
                 level.group, level.bytes_per_s);
    }
  }
  if (product != static_cast<int64_t>(cluster.devices.size())) {
    fail_input("the cluster has {} devices, its levels have {}", cluster.devices.size(), product);
  }
  for (const Device& device : cluster.devices) {
    if (!(device.speed > 0)) {
      fail_input("device {}:{} has speed {}; write more than 0", device.id.node, device.id.device, device.speed);
    }
  }
}

std::vector<double> crossing_bytes_per_cut(const profile::Profile& profile) {
  const size_t n = profile.operators.size();
  std::vector<int> last_reader(n, -1);
  for (const profile::Edge& edge : profile.edges) last_reader[edge.from] = std::max(last_reader[edge.from], edge.to);
  std::vector<double> bytes(n + 1, 0.0);
  for (size_t op = 0; op < n; ++op) {
    for (int cut = static_cast<int>(op) + 1; cut <= last_reader[op]; ++cut) {
      bytes[cut] += static_cast<double>(profile.operators[op].output_bytes);
    }
  }
  return bytes;
}

}  // namespace

void RangeMax::assign(std::vector<double> values) {
  powers_.assign(1, std::move(values));
  for (size_t half = 1; 2 * half <= powers_[0].size(); half *= 2) {
    const std::vector<double>& shorter = powers_.back();
    std::vector<double> longer;
    for (size_t i = 0; i + half < shorter.size(); ++i) longer.push_back(std::max(shorter[i], shorter[i + half]));
    powers_.push_back(std::move(longer));
  }
}

StageCosts::StageCosts(const profile::Profile& profile, const Cluster& cluster, const CostOptions& options)
    : cluster_(cluster), options_(options) {
  check(profile, cluster, options);
  for (std::vector<double>* sums : {&seconds_, &backward_, &update_, &params_, &kept_}) sums->push_back(0);
  std::vector<double> workspace, output;
  for (const profile::Operator& op : profile.operators) {
    const double backward = op.input_grad.median + op.weight_grad.median;
    seconds_.push_back(seconds_.back() + op.forward.median + backward);
    backward_.push_back(backward_.back() + backward);
    update_.push_back(update_.back() + op.update.median);
    params_.push_back(params_.back() + static_cast<double>(op.param_bytes));
    kept_.push_back(kept_.back() + static_cast<double>(op.kept_bytes));
    workspace.push_back(static_cast<double>(op.most_workspace()));
    output.push_back(static_cast<double>(op.output_bytes));
  }
  workspace_.assign(std::move(workspace));
  output_.assign(std::move(output));
  crossing_ = crossing_bytes_per_cut(profile);
  cuttable_.assign(profile.operators.size() + 1, true);
  for (const profile::Edge& tie : profile.ties) {
    for (int cut = tie.from + 1; cut <= tie.to; ++cut) cuttable_[cut] = false;
  }
  int devices = 1;
  for (const Level& level : cluster.levels) {
    members_.push_back(devices);
    devices *= level.group;
  }
}

int StageCosts::level_between(int a, int b) const {
  int level = 0;
  while (level + 1 < static_cast<int>(members_.size()) && a / members_[level + 1] != b / members_[level + 1]) ++level;
  return level;
}

int StageCosts::nearest_level(const std::vector<int>& stage, const std::vector<int>& others) const {
  int level = 0;
  for (int other : others) {
    int nearest = static_cast<int>(members_.size()) - 1;
    for (int device : stage) nearest = std::min(nearest, level_between(device, other));
    level = std::max(level, nearest);
  }
  return level;
}

Place StageCosts::place(std::vector<int> devices, const std::vector<int>& before, const std::vector<int>& after) const {
  Place place;
  place.replicas = static_cast<int>(devices.size());
  place.speed = cluster_.devices[devices[0]].speed;
  place.memory_bytes = static_cast<double>(cluster_.devices[devices[0]].memory_bytes);
  for (int device : devices) {
    place.speed = std::min(place.speed, cluster_.devices[device].speed);
    place.memory_bytes = std::min(place.memory_bytes, static_cast<double>(cluster_.devices[device].memory_bytes));
  }
  place.memory_bytes -= static_cast<double>(options_.reserved_bytes);
  const auto way = [&](const std::vector<int>& others, double& per_byte, double& latency_s) {
    if (others.empty() || cluster_.levels.empty()) return;
    for (int level = 0; level <= nearest_level(devices, others); ++level) {
      const Level& link = cluster_.levels[level];
      if (link.group == 1) continue;
      std::set<int> links;
      for (int device : devices) links.insert(device / (link.shared ? members_[level] * link.group : members_[level]));
      per_byte = std::max(per_byte, 1 / (link.bytes_per_s * static_cast<double>(links.size())));
      latency_s += link.latency_s;
    }
  };
  way(before, place.in_per_byte, place.in_latency_s);
  way(after, place.out_per_byte, place.out_latency_s);
  place.sum = sum_cost(cluster_, devices);
  place.devices = std::move(devices);
  return place;
}

int StageCosts::versions(const Place& place, Depth depth) const {
  return options_.synchronous() ? 1 : in_flight(place, depth);
}

int StageCosts::in_flight(const Place& place, Depth depth) const {
  switch (options_.mode) {
    case job::Mode::Dp: return 1;
    case job::Mode::GPipe: return depth.stages == 1 ? 1 : options_.microbatches;
    case job::Mode::OneFOneB: return std::min(depth.stages, options_.microbatches);
    case job::Mode::PipeDream: return (depth.devices + place.replicas - 1) / place.replicas;
    case job::Mode::Ssp: return depth.stages;
    case job::Mode::Auto: break;  // chosen before anything has a cost
  }
  return 1;
}

double StageCosts::least_memory(int begin, int end, const Place& place, Depth depth) const {
  const double params = params_[end] - params_[begin];
  return params * (versions(place, depth) + 1 + options_.optimizer_slots) +
         (kept_[end] - kept_[begin] + crossing_[begin]) * in_flight(place, depth) / sharers(place);
}

StageCost StageCosts::evaluate(int begin, int end, const Place& place, Depth depth) const {
  StageCost cost;
  const double in = crossing_[begin], out = crossing_[end], params = params_[end] - params_[begin];
  const double in_s = in > 0 ? in * place.in_per_byte + place.in_latency_s : 0;
  const double out_s = out > 0 ? out * place.out_per_byte + place.out_latency_s : 0;
  cost.compute_s = seconds(begin, end) / (place.replicas * place.speed);
  cost.transfer_s = in_s + out_s;
  // Of minibatches taken in turn, a round of one per replica has one backward pass, one sum and one update.
  const double backward_s = (backward_[end] - backward_[begin]) / (sharers(place) * place.speed);
  const double reduce_s = params > 0 && place.replicas > 1 ? params * place.sum.per_byte + place.sum.latency_s : 0;
  const double round = options_.in_turn() ? place.replicas : 1;
  cost.exposed_s = std::max(0.0, reduce_s - (place.sum.occupies ? 0 : backward_s)) / round;
  cost.update_s = (update_[end] - update_[begin]) / place.speed / round;
  const double after_s = cost.exposed_s + cost.update_s;
  if (options_.synchronous()) {
    cost.busy_s = (options_.microbatches - 1) * std::max(cost.compute_s, cost.transfer_s) + after_s;
    cost.fill_s = cost.compute_s + 2 * out_s;
  } else {
    cost.busy_s = std::max(cost.compute_s + after_s, cost.transfer_s);
  }
  StageMemory& memory = cost.memory;
  memory.versions = versions(place, depth);
  memory.in_flight = in_flight(place, depth);
  memory.weights = params * memory.versions;
  memory.gradients = params;
  memory.optimizer = params * options_.optimizer_slots;
  memory.activations = (kept_[end] - kept_[begin] + in) * memory.in_flight / sharers(place);
  memory.buffers = (in + out) / sharers(place);
  memory.workspace = workspace_.of(begin, end) + 2 * output_.of(begin, end) / sharers(place);
  return cost;
}

}  // namespace millrace::plan
