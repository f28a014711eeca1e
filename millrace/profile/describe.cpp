#include "millrace/profile/describe.h"

#include <map>
#include <set>
#include <utility>

namespace millrace::profile {
namespace {

using graph::BufferId;
using graph::BufferRole;

void add_operators(const graph::Graph& graph, Profile& profile) {
  for (const graph::Op& op : graph.ops) {
    const int to = static_cast<int>(profile.operators.size());
    Operator& described = profile.operators.emplace_back();
    described.name = op.name;
    described.kind = name_of(op.kind);
    std::set<int> producers;
    for (graph::ValueId input : op.inputs) {
      const graph::OpId from = graph.producer(input);
      if (from != graph::kNone) producers.insert(from);
    }
    for (int from : producers) profile.edges.push_back({from, to});
  }
}

}  // namespace

const Seconds& seconds_of(const Operator& op, graph::Pass pass) {
  switch (pass) {
    case graph::Pass::InputGrad: return op.input_grad;
    case graph::Pass::WeightGrad: return op.weight_grad;
    case graph::Pass::Update: return op.update;
    default: return op.forward;
  }
}
Seconds& seconds_of(Operator& op, graph::Pass pass) {
  return const_cast<Seconds&>(seconds_of(std::as_const(op), pass));
}

Profile describe(const graph::Graph& graph, const graph::Program& program,
                 const std::function<int64_t(BufferId)>& bytes) {
  Profile profile;
  profile.model = graph.name;
  profile.rows = graph.batch();
  if (program.features != graph::kNone) profile.input_bytes = bytes(program.features);
  add_operators(graph, profile);
  std::set<BufferId> weights, read_by_backward;
  for (size_t i = program.first_backward; i < program.nodes.size(); ++i) {
    read_by_backward.insert(program.nodes[i].reads.begin(), program.nodes[i].reads.end());
  }
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const graph::Node& node = program.nodes[i];
    Operator& op = profile.operators[node.op];
    for (BufferId id : node.reads) {
      const graph::Buffer& buffer = program.buffers[id];
      if (buffer.role != BufferRole::Weight || !weights.insert(id).second) continue;
      const auto per_byte = static_cast<int64_t>(bytes_of(wide(buffer.dtype)) / bytes_of(buffer.dtype));
      op.param_bytes += bytes(id) * per_byte;
    }
    if (i >= program.first_backward) continue;
    const bool own = node.kind == graph.ops[node.op].kind;  // not a mask or a sum that belongs to it
    if (own && program.buffers[node.writes[0]].role == BufferRole::Activation) op.output_bytes = bytes(node.writes[0]);
    for (BufferId id : node.writes) {
      if (program.buffers[id].role == BufferRole::Activation && read_by_backward.contains(id))
        op.kept_bytes += bytes(id);
    }
  }
  return profile;
}

}  // namespace millrace::profile
