// Between plain floats on the host and a buffer as it is stored.
#pragma once

#include <array>

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

struct Fold;

// Pinned memory of the host: one piece is emptied while the other fills.
struct Landing {
  std::array<float*, 2> memory{};
  std::array<cudaEvent_t, 2> filled{};
};

// Device memory through which plain numbers pass, a piece at a time.
constexpr size_t kStagingBytes = size_t{16} << 20;
struct Staging {
  float* memory = nullptr;
  size_t bytes = 0;
  // Of pieces as large, through which numbers come out; none: straight to their place.
  const Landing* landing = nullptr;
};

// Where a row of a buffer is larger than the staging memory.
[[noreturn]] void refuse_row(const graph::Buffer& buffer, const Staging& staging);

// Both return when the host's memory was used; `plain` has buffer.shape.elements(), `pitch` and `stored` are the
// buffer's row_pitch() and stored_elements().
void put_plain(const Device& device, const Staging& staging, const graph::Buffer& buffer, int64_t pitch, int64_t stored,
               const float* plain, void* to);
void get_plain(const Device& device, const Staging& staging, const graph::Buffer& buffer, int64_t pitch,
               const void* from, float* plain);

// The same from memory of the device, in the order of the tasks.
void store_plain(const Device& device, const graph::Buffer& buffer, int64_t pitch, int64_t stored, const float* plain,
                 void* to);

// Images for a convolution that reads them folded; from memory of the device, fold_images (stem.h).
void put_images(const Device& device, const Staging& staging, const graph::Buffer& buffer, const Fold& fold,
                const float* plain, void* to);

}  // namespace millrace::backend::cuda
