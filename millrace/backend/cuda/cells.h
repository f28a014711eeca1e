// Which cell of its window won a max pooling, in four bits where the window is small: half a byte for each output is
// kept from forward to backward.
#pragma once

#include <span>
#include <vector>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

constexpr int kSmallCellBits = 4;
constexpr uint32_t kNoSmallCell = 15;  // of an output that the ReLU stops
constexpr uint32_t kNoCell = 255;      // the same where a cell has a byte

inline int cell_bits(const graph::Window& window) {
  return window.kernel_h * window.kernel_w <= static_cast<int>(kNoSmallCell) ? kSmallCellBits : 8;
}

// Whether a buffer holds cells of four bits.
bool has_small_cells(const graph::Program& program, graph::BufferId id);

// Between one number for each output and the bytes of the buffer.
std::vector<uint8_t> packed_cells(const graph::Buffer& buffer, std::span<const float> plain);
void unpack_cells(const graph::Buffer& buffer, std::span<const uint8_t> cells, std::span<float> plain);

}  // namespace millrace::backend::cuda
