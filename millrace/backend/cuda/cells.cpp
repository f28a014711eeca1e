#include "millrace/backend/cuda/cells.h"

namespace millrace::backend::cuda {
namespace {

// visit(plain element, stored element)
template <typename Visit>
void each_output(const graph::Buffer& buffer, const Visit& visit) {
  const Image image(buffer.shape);
  const int64_t area = image.h * image.w;
  for (int64_t n = 0; n < image.n; ++n) {
    for (int64_t c = 0; c < image.channels; ++c) {
      for (int64_t i = 0; i < area; ++i) {
        visit(static_cast<size_t>((n * image.channels + c) * area + i),
              static_cast<size_t>((n * area + i) * image.c + c));
      }
    }
  }
}

size_t shift_of(size_t element) { return element % 2 * kSmallCellBits; }

}  // namespace

bool has_small_cells(const graph::Program& program, graph::BufferId id) {
  if (program.buffers[id].dtype != DType::U8) return false;
  auto is_small = [](const graph::Node& node) {
    return cell_bits(std::get<graph::PoolAttrs>(node.attrs).window) == kSmallCellBits;
  };
  for (const graph::Node& node : program.nodes) {
    if (node.kind != graph::OpKind::MaxPool) continue;
    if (node.writes.size() > 1 && node.writes[1] == id) return is_small(node);
    if (node.reads.size() > 1 && node.reads[1] == id) return is_small(node);
  }
  return false;
}

std::vector<uint8_t> packed_cells(const graph::Buffer& buffer, std::span<const float> plain) {
  std::vector<uint8_t> cells(static_cast<size_t>(stored_elements(buffer)) / 2);
  each_output(buffer, [&](size_t from, size_t to) {
    const auto cell = static_cast<uint32_t>(plain[from]) & kNoSmallCell;
    cells[to / 2] |= static_cast<uint8_t>(cell << shift_of(to));
  });
  return cells;
}

void unpack_cells(const graph::Buffer& buffer, std::span<const uint8_t> cells, std::span<float> plain) {
  each_output(buffer, [&](size_t to, size_t from) {
    const uint32_t cell = cells[from / 2] >> shift_of(from) & kNoSmallCell;
    plain[to] = static_cast<float>(cell == kNoSmallCell ? kNoCell : cell);
  });
}

}  // namespace millrace::backend::cuda
