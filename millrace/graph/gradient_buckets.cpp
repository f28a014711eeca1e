#include "millrace/graph/program.h"

namespace millrace::graph {

std::vector<Bucket> gradient_buckets(const Program& program, size_t bytes) {
  std::vector<Bucket> buckets;
  size_t filled = 0;
  for (size_t i = program.first_backward; i < program.first_update; ++i) {
    if (program.nodes[i].pass != Pass::WeightGrad) continue;
    for (BufferId id : program.nodes[i].writes) {
      const Buffer& buffer = program.buffers[id];
      if (!is_kept_gradient(buffer.role)) continue;
      if (buckets.empty() || filled >= bytes) {
        buckets.emplace_back();
        filled = 0;
      }
      buckets.back().gradients.push_back(id);
      buckets.back().end = i + 1;
      filled += static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype);
    }
  }
  if (!buckets.empty()) buckets.back().end = program.first_update;
  return buckets;
}

}  // namespace millrace::graph
