#include "millrace/plan/roofline.h"

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/graph/program.h"
#include "millrace/profile/describe.h"

namespace millrace::plan {
profile::Profile roofline_profile(const graph::Graph& graph, const DeviceRates& rates, const graph::UpdateRule& rule) {
  if (!(rates.flops_per_s > 0 && rates.bytes_per_s > 0)) fail_input("a device's rates must be above 0");
  const graph::Program program = training_program(graph, {.microbatches = 1, .rule = rule});
  const auto bytes = [&](graph::BufferId id) {
    const graph::Buffer& buffer = program.buffers[id];
    const bool is_value = buffer.param == graph::kNone && buffer.dtype == DType::F32;
    return buffer.shape.elements() * (is_value ? rates.value_bytes : static_cast<int64_t>(bytes_of(buffer.dtype)));
  };
  profile::Profile profile = profile::describe(graph, program, bytes);
  profile.value_bytes = rates.value_bytes;
  for (const graph::Node& node : program.nodes) {
    const graph::Op& op = graph.ops[node.op];
    const double flops = node.kind == op.kind ? forward_flops(graph, op) : 0;
    double touched = 0;
    for (graph::BufferId id : node.reads) touched += static_cast<double>(bytes(id));
    for (graph::BufferId id : node.writes) touched += static_cast<double>(bytes(id));
    seconds_of(profile.operators[node.op], node.pass).median +=
        std::max(flops / rates.flops_per_s, touched / rates.bytes_per_s) + rates.seconds_per_node;
  }
  for (const profile::Operator& op : profile.operators) {
    profile.step_s += op.seconds();
  }
  return profile;
}

}  // namespace millrace::plan
