#include "millrace/plan/stage_memory.h"

#include <deque>

namespace millrace::plan {
namespace {

using graph::Program;
using memory::MemoryKind;

struct LaidOut {
  Program program;
  std::vector<size_t> buffer_bytes;
  memory::MemoryPlan plan;
};

LaidOut lay_out(Program program, const graph::Graph& graph, const profile::Profile& profile, memory::Between between) {
  LaidOut laid_out;
  laid_out.program = std::move(program);
  for (size_t id = 0; id < laid_out.program.buffers.size(); ++id) {
    const graph::Buffer& buffer = laid_out.program.buffers[id];
    if (static_cast<graph::BufferId>(id) == laid_out.program.features && profile.input_bytes > 0) {
      laid_out.buffer_bytes.push_back(static_cast<size_t>(profile.input_bytes));
      continue;
    }
    const bool is_value = buffer.param == graph::kNone && buffer.dtype == DType::F32;
    const size_t each = is_value ? static_cast<size_t>(profile.value_bytes) : bytes_of(buffer.dtype);
    laid_out.buffer_bytes.push_back(static_cast<size_t>(buffer.shape.elements()) * each);
  }
  std::vector<size_t> scratch;
  for (const graph::Node& node : laid_out.program.nodes) {
    const bool own = node.kind == graph.ops[node.op].kind;  // not a mask, a sum or an update that belongs to it
    const size_t pass = node.pass == graph::Pass::InputGrad ? 1 : node.pass == graph::Pass::WeightGrad ? 2 : 0;
    scratch.push_back(own ? static_cast<size_t>(profile.operators[node.op].workspace_bytes[pass]) : 0);
  }
  laid_out.plan = memory::plan_memory(laid_out.program, laid_out.buffer_bytes, scratch, between);
  return laid_out;
}

}  // namespace

StageMemory stage_memory(const graph::Graph& graph, const profile::Profile& profile,
                         const StageMemoryOptions& options) {
  const memory::Between between = memory::between(options.copies, options.recompute);
  std::deque<LaidOut> all;  // stays in place while it grows
  all.push_back(lay_out(training_program(graph, options.training), graph, profile, between));
  if (options.evaluates) {
    all.push_back(lay_out(evaluation_program(graph, options.training.stage), graph, profile, between));
  }
  std::vector<memory::LaidOutProgram> programs;
  for (const LaidOut& laid_out : all) programs.push_back({laid_out.program, laid_out.buffer_bytes, laid_out.plan});
  StageMemory memory;
  memory.versions = options.copies.versions;
  memory.in_flight = options.copies.slots;
  const memory::StageLayout layout(options.copies, programs);
  memory.state = static_cast<double>(layout.state_bytes());
  for (const memory::MemoryItem& item : layout.items()) {
    const auto bytes = static_cast<double>(item.bytes);
    switch (item.kind) {
      case MemoryKind::Weights: memory.weights += bytes; break;
      case MemoryKind::Gradients: memory.gradients += bytes; break;
      case MemoryKind::Optimizer: memory.optimizer += bytes; break;
      case MemoryKind::Activations: memory.activations += bytes; break;
      case MemoryKind::Buffers: memory.buffers += bytes; break;
      case MemoryKind::Workspace: memory.workspace += bytes; break;
    }
  }
  // What the items leave out: evaluation may need a larger arena than training.
  memory.workspace += static_cast<double>(layout.bytes()) - memory.total();
  return memory;
}

}  // namespace millrace::plan
