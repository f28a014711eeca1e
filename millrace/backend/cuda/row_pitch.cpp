#include "millrace/backend/cuda/row_pitch.h"

#include <algorithm>

namespace millrace::backend::cuda {
namespace {

using graph::BufferId;
using graph::BufferRole;
using graph::OpKind;
using graph::Pass;

bool touches(const graph::Node& node, BufferId id) {
  const auto has = [id](const std::vector<BufferId>& ids) { return std::count(ids.begin(), ids.end(), id) > 0; };
  return has(node.reads) || has(node.writes);
}

// Whether the node's kernel asks for the pitch of this operand: a linear layer's output or its gradient, logits or
// theirs.
bool knows_pitch(const graph::Node& node, BufferId id) {
  const bool forward = node.pass == Pass::Forward || node.pass == Pass::Evaluate;
  if (node.kind == OpKind::Linear) {
    return id == (forward ? node.writes[0] : node.pass == Pass::InputGrad ? node.reads[0] : node.reads[1]);
  }
  if (node.kind == OpKind::SoftmaxCrossEntropy) return id == node.reads[0] || (!forward && id == node.writes[0]);
  return false;
}

// What goes to another stage or comes from there is plain: either side sees its own nodes only.
bool crosses(const graph::Program& program, BufferId id) {
  const auto is_end = [id](const graph::Crossing& crossing) {
    return crossing.buffer == id || crossing.gradient == id;
  };
  return std::any_of(program.inputs.begin(), program.inputs.end(), is_end) ||
         std::any_of(program.outputs.begin(), program.outputs.end(), is_end);
}

// Whole lines of the cache where that costs little.
int64_t with_room(int64_t width) {
  constexpr int64_t kLine = 64;
  return width < 8 * kLine ? padded(width) : (width + kLine - 1) / kLine * kLine;
}

}  // namespace

int64_t row_pitch(const graph::Program& program, BufferId id) {
  const graph::Buffer& buffer = program.buffers[id];
  const int64_t width = buffer.shape.width();
  const bool is_value = buffer.role == BufferRole::Activation || buffer.role == BufferRole::Gradient;
  if (!is_value || buffer.shape.rank() < 2 || buffer.shape.rank() == 4 || width % 8 == 0) return width;
  if (crosses(program, id)) return width;
  for (const graph::Node& node : program.nodes) {
    if (touches(node, id) && !knows_pitch(node, id)) return width;
  }
  return with_room(width);
}

int64_t stored_elements(const graph::Program& program, BufferId id) {
  const graph::Buffer& buffer = program.buffers[id];
  if (buffer.role == BufferRole::Weight && buffer.shape.rank() == 2 && buffer.shape[0] % 8 != 0) {
    return padded(with_room(buffer.shape[0]) * buffer.shape[1]);
  }
  const int64_t pitch = row_pitch(program, id);
  return pitch == buffer.shape.width() ? stored_elements(buffer) : buffer.shape.rows() * pitch;
}

}  // namespace millrace::backend::cuda
