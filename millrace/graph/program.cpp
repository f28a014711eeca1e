#include "millrace/graph/program.h"

#include <algorithm>
#include <map>

namespace millrace::graph {

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::Forward: return "F";
    case Pass::Evaluate: return "E";
    case Pass::InputGrad: return "I";
    case Pass::WeightGrad: return "W";
    case Pass::Update: return "U";
  }
  return "?";
}

const char* name_of(BufferRole role) {
  switch (role) {
    case BufferRole::Input: return "inputs";
    case BufferRole::Activation: return "activations";
    case BufferRole::Gradient: return "activation gradients";
    case BufferRole::Weight: return "weights";
    case BufferRole::Constant: return "frozen weights";
    case BufferRole::WeightGradient: return "weight gradients";
    case BufferRole::GradientSum: return "gradient sums";
    case BufferRole::SharedGradient: return "replicas' gradients";
    case BufferRole::Velocity:
    case BufferRole::SecondMoment: return "optimizer";
    case BufferRole::Master: return "master weights";
    case BufferRole::Agreement: return "agreement";
    case BufferRole::Watch: return "watched gradients";
    case BufferRole::Statistic: return "statistics";
    case BufferRole::Metric: return "metrics";
  }
  return "?";
}

int StageSlice::stage_of(OpId op) const {
  return static_cast<int>(std::upper_bound(first.begin(), first.end(), op) - first.begin()) - 1;
}

std::vector<StageEdge> stage_edges(const Graph& graph, const std::vector<OpId>& first) {
  const StageSlice slice{first, 0};
  std::map<std::pair<int, int>, StageEdge> edges;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const int to = slice.stage_of(id);
    for (ValueId value : graph.ops[id].inputs) {
      if (value == graph.features || value == graph.labels) continue;
      const int from = slice.stage_of(graph.producer(value));
      if (from == to) continue;
      StageEdge& edge = edges[{from, to}];
      edge.from = from;
      edge.to = to;
      if (std::find(edge.values.begin(), edge.values.end(), value) == edge.values.end()) edge.values.push_back(value);
    }
  }
  std::vector<StageEdge> ordered;
  for (auto& [ends, edge] : edges) {
    std::sort(edge.values.begin(), edge.values.end());
    ordered.push_back(std::move(edge));
  }
  return ordered;
}

}  // namespace millrace::graph
