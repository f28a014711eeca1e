#include "millrace/graph/prefix.h"

#include <algorithm>
#include <set>

namespace millrace::graph {

std::optional<PrefixEnd> prefix_end(const Graph& graph, const Program& program, int layers) {
  if (layers < 1 || program.features == kNone || program.nodes.empty() || program.nodes[0].op != 0) return std::nullopt;
  PrefixEnd end;
  end.layers = layers;
  const auto is_inside = [&](const Node& node) { return graph.ops[node.op].depth <= layers; };
  while (end.node < program.first_backward && is_inside(program.nodes[end.node])) ++end.node;
  std::set<BufferId> made;
  for (size_t i = 0; i < end.node; ++i) {
    if (!graph.ops[program.nodes[i].op].frozen) return std::nullopt;
    made.insert(program.nodes[i].writes.begin(), program.nodes[i].writes.end());
  }
  for (size_t i = end.node; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (i < program.first_backward && is_inside(node)) return std::nullopt;
    for (const BufferId id : node.reads) {
      end.reads_input |= id == program.features;
      if (!made.contains(id) || id == end.output) continue;
      if (end.output != kNone) return std::nullopt;
      end.output = id;
    }
  }
  // What goes to the next stage as it is was read by nobody here.
  for (const Crossing& crossing : program.outputs) {
    if (!made.contains(crossing.buffer) || crossing.buffer == end.output) continue;
    if (end.output != kNone) return std::nullopt;
    end.output = crossing.buffer;
  }
  return end.output == kNone ? std::nullopt : std::optional(end);
}

}  // namespace millrace::graph
