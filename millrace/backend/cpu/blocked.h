// The blocked activation layout N x C/B x HW x B as the hand-written kernels see it: one vector of kBlock
// channels per pixel.
#pragma once

#include <cstdint>
#include <cstring>

#include "millrace/base/shape.h"

namespace millrace::backend::cpu {

#ifdef __AVX512F__
constexpr int kBlock = 16;
#else
constexpr int kBlock = 8;
#endif

// May alias float: the same memory is read by oneDNN and by scalar code.
using Lanes [[gnu::vector_size(kBlock * sizeof(float)), gnu::may_alias]] = float;
using LaneMask [[gnu::vector_size(kBlock * sizeof(int32_t)), gnu::may_alias]] = int32_t;

// Minus zero, because plus zero is an addition: it makes another number of -0.
inline Lanes splat(float value) { return value - Lanes{}; }
inline Lanes select(LaneMask mask, Lanes yes, Lanes no) { return mask ? yes : no; }
inline Lanes relu(Lanes x) { return select(x > 0.0f, x, Lanes{}); }

struct BlockedShape {
  int64_t batch, channels, height, width;
  explicit BlockedShape(const Shape& shape) : batch(shape[0]), channels(shape[1]), height(shape[2]), width(shape[3]) {}
  int64_t pixels() const { return height * width; }
  int64_t blocks() const { return (channels + kBlock - 1) / kBlock; }
  int64_t vectors() const { return batch * blocks() * pixels(); }
  int64_t plane(int64_t n, int64_t block) const { return (n * blocks() + block) * pixels(); }
};

// Per-channel arrays are not padded: the tail of the last block reads as zero and is not written.
inline int channels_in(int64_t block, int64_t channels) {
  const int64_t left = channels - block * kBlock;
  return static_cast<int>(left < kBlock ? left : kBlock);
}
inline Lanes load_channels(const float* array, int64_t block, int64_t channels) {
  Lanes lanes{};
  std::memcpy(&lanes, array + block * kBlock, sizeof(float) * static_cast<size_t>(channels_in(block, channels)));
  return lanes;
}
inline void store_channels(Lanes lanes, float* array, int64_t block, int64_t channels) {
  std::memcpy(array + block * kBlock, &lanes, sizeof(float) * static_cast<size_t>(channels_in(block, channels)));
}

}  // namespace millrace::backend::cpu
