#include "millrace/plan/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "millrace/base/error.h"
#include "millrace/job/text.h"

namespace millrace::plan {
namespace {

using graph::Graph;
using graph::Op;

// sums[i] is the weight of the first i operators.
std::vector<double> running_sums(std::span<const double> weights) {
  std::vector<double> sums(weights.size() + 1, 0.0);
  std::partial_sum(weights.begin(), weights.end(), sums.begin() + 1);
  return sums;
}

void check_enough_operators(size_t num_ops, size_t num_stages) {
  if (num_stages >= 1 && num_stages <= num_ops) return;
  fail_input("{} operators cannot be cut into {} stages; write a placement with at most {}", num_ops, num_stages,
             num_ops);
}

int find_layer(const Graph& graph, const std::string& layer) {
  const auto index_of = [&](auto matches) {
    const auto found = std::find_if(graph.ops.begin(), graph.ops.end(), matches);
    return found == graph.ops.end() ? graph::kNone : static_cast<int>(found - graph.ops.begin());
  };
  const int exact = index_of([&](const Op& op) { return op.name == layer; });
  return exact != graph::kNone ? exact : index_of([&](const Op& op) { return op.name.starts_with(layer + "."); });
}

// Every name that find_layer knows: "layer3", "layer3.0" and "layer3.0.conv1".
std::vector<std::string> layer_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops) {
    for (size_t dot = op.name.find('.'); dot != std::string::npos; dot = op.name.find('.', dot + 1)) {
      names.push_back(op.name.substr(0, dot));
    }
    names.push_back(op.name);
  }
  return names;
}

}  // namespace

std::vector<double> operator_weights(const Graph& fused) {
  std::vector<double> weights;
  for (const Op& op : fused.ops) {
    int parts = 1;
    if (const auto* conv = std::get_if<graph::Conv2dAttrs>(&op.attrs)) parts += conv->relu;
    if (const auto* linear = std::get_if<graph::LinearAttrs>(&op.attrs)) parts += linear->relu;
    if (const auto* norm = std::get_if<graph::BatchNormAttrs>(&op.attrs)) parts += norm->residual + norm->relu;
    if (const auto* pool = std::get_if<graph::PoolAttrs>(&op.attrs)) parts += pool->relu;
    weights.push_back(parts);
  }
  return weights;
}

std::vector<double> flop_weights(const Graph& graph) {
  std::vector<double> weights;
  for (const Op& op : graph.ops) {
    const auto written = static_cast<double>(graph.values[op.output].shape.elements());
    weights.push_back(std::max({forward_flops(graph, op), written, 1.0}));
  }
  return weights;
}

std::vector<int> cut_by_shares(std::span<const double> op_weights, std::span<const double> shares) {
  check_enough_operators(op_weights.size(), shares.size());
  const int num_ops = static_cast<int>(op_weights.size()), num_stages = static_cast<int>(shares.size());
  const std::vector<double> sums = running_sums(op_weights), share_sums = running_sums(shares);
  std::vector<int> first{0};
  for (int stage = 1; stage < num_stages; ++stage) {
    const double wanted = sums.back() * share_sums[stage] / share_sums.back();
    // One operator at least for this stage's predecessor, and one for each stage from here on.
    const int earliest = first.back() + 1, latest = num_ops - (num_stages - stage);
    int nearest = earliest;
    for (int op = earliest; op <= latest; ++op) {
      if (std::abs(sums[op] - wanted) < std::abs(sums[nearest] - wanted)) nearest = op;
    }
    first.push_back(nearest);
  }
  return first;
}

std::vector<int> balanced_cut(std::span<const double> op_weights, std::span<const double> speeds) {
  check_enough_operators(op_weights.size(), speeds.size());
  const int num_ops = static_cast<int>(op_weights.size()), num_stages = static_cast<int>(speeds.size());
  const std::vector<double> sums = running_sums(op_weights);
  // slowest[s][i]: the least time of the slowest of the stages s, s + 1, ... when stage s begins with operator i;
  // next[s][i]: where stage s + 1 then begins.
  const double never = std::numeric_limits<double>::infinity();
  std::vector slowest(num_stages, std::vector<double>(num_ops, never));
  std::vector next(num_stages, std::vector<int>(num_ops, num_ops));
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    for (int begin = stage; begin < num_ops; ++begin) {
      const auto time_to = [&](int end) { return (sums[end] - sums[begin]) / speeds[stage]; };
      if (stage == num_stages - 1) {
        slowest[stage][begin] = time_to(num_ops);
        continue;
      }
      for (int end = begin + 1; end < num_ops; ++end) {
        const double time = std::max(time_to(end), slowest[stage + 1][end]);
        if (time >= slowest[stage][begin]) continue;
        slowest[stage][begin] = time;
        next[stage][begin] = end;
      }
    }
  }
  std::vector<int> first{0};
  for (int stage = 0; stage + 1 < num_stages; ++stage) first.push_back(next[stage][first.back()]);
  return first;
}

std::vector<int> cut_by_names(const Graph& graph, const std::vector<std::string>& cuts) {
  std::vector<int> first{0};
  for (const std::string& cut : cuts) {
    const int op = find_layer(graph, cut);
    if (op == graph::kNone) {
      const std::string near = job::nearest(cut, layer_names(graph));
      fail_input("parallel.cuts: {} has no layer {} that a stage can begin with{}", graph.name, job::in_quotes(cut),
                 near.empty() ? fmt::format("; its last is \"{}\"", graph.ops.back().name)
                              : fmt::format("; did you mean \"{}\"?", near));
    }
    if (op == 0) {
      fail_input("parallel.cuts: {} begins with \"{}\", so that stage 0 would be empty; write a later layer",
                 graph.name, cut);
    }
    if (op <= first.back()) {
      fail_input("parallel.cuts: \"{}\" does not come after \"{}\" in {}; write the layers in the model's order", cut,
                 cuts[first.size() - 2], graph.name);
    }
    first.push_back(op);
  }
  return first;
}

bool has_generated_modules(const Graph& graph, const std::vector<int>& module_to_stage) {
  const std::vector<double> operators = operator_weights(graph);
  const size_t num_operators = static_cast<size_t>(std::accumulate(operators.begin(), operators.end(), 0.0));
  if (module_to_stage.size() == num_operators) return false;
  const int last = module_to_stage.back();
  if (last == 0) return true;
  // Stages neither fall nor are left out, so that the last two entries tell all.
  const size_t num_entries = module_to_stage.size();
  return num_entries == static_cast<size_t>(last) + 2 && module_to_stage[num_entries - 2] == last;
}

std::vector<int> cut_by_modules(const Graph& graph, const std::vector<int>& module_to_stage) {
  const std::vector<double> sums = running_sums(operator_weights(graph));
  const auto num_modules = static_cast<size_t>(sums.back());
  if (module_to_stage.size() != num_modules) {
    const int num_stages = module_to_stage.back() + 1;
    fail_input(
        "parallel.stage_file: module_to_stage_map has {} entries for {} stages; write {}, one for each operator of {} "
        "with its loss, or {}, one for each stage and one for the loss",
        module_to_stage.size(), num_stages, num_modules, graph.name, num_stages + 1);
  }
  // The last operator is the loss, which stands for itself alone: no stage is lost behind it.
  std::vector<int> first;
  for (size_t op = 0; op < graph.ops.size(); ++op) {
    const int stage = module_to_stage[static_cast<size_t>(sums[op])];
    const int num_stages = static_cast<int>(first.size());
    if (stage > num_stages) {
      fail_input(
          "parallel.stage_file: all of stage {} is computed together with \"{}\", which belongs to stage {}; give "
          "stage {} another module",
          num_stages, graph.ops[op - 1].name, num_stages - 1, num_stages);
    }
    if (stage == num_stages) first.push_back(static_cast<int>(op));
  }
  return first;
}

}  // namespace millrace::plan
