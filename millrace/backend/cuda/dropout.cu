// The gradient goes through the mask exactly as the value did, so both passes are one kernel. What is kept follows
// dropout_mask.h.
#include <algorithm>
#include <cmath>
#include <string>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/philox.cuh"
#include "millrace/backend/cuda/vector.cuh"
#include "millrace/base/random.h"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kThreads = 256;
constexpr int kBlocks = 32;           // per multiprocessor, at most
constexpr int64_t kMostRows = 65535;  // that a grid has: blocks stride over the rest

struct Mask {
  uint64_t purpose;
  uint32_t threshold;
  float scale;

  Mask(const std::string& name, double probability)
      : purpose(hash_name(name)),
        threshold(static_cast<uint32_t>(std::ceil(probability * 0x1p24))),
        scale(static_cast<float>(1.0 / (1.0 - probability))) {}

  __device__ uint64_t key(const StepContext& context) const {
    return mix(mix(context.seed, purpose), static_cast<uint64_t>(context.step));
  }
  // A selection, not a product: the scale of probability 1 is infinite.
  __device__ float apply(uint32_t word, float value) const { return (word >> 8) >= threshold ? value * scale : 0; }
};

// Plain rows of whole vectors: a vector takes its words from whole Philox blocks.
template <typename T>
__global__ void drop_rows(const StepContext* context, Mask mask, int64_t rows, int64_t row_vectors, const T* from,
                          T* to) {
  constexpr int kSize = Vector<T>::kSize;
  const uint64_t key = mask.key(*context);
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const uint64_t sample = context->first_row + row;
    for (int64_t v = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; v < row_vectors;
         v += int64_t{gridDim.x} * blockDim.x) {
      const int64_t at = (row * row_vectors + v) * kSize;
      Floats<T> floats = load(from + at);
#pragma unroll
      for (int four = 0; four < kSize / 4; ++four) {
        const PhiloxBlock block = philox(key, sample, v * (kSize / 4) + four);
#pragma unroll
        for (int e = 0; e < 4; ++e) floats.at[four * 4 + e] = mask.apply(block.at[e], floats.at[four * 4 + e]);
      }
      store(to + at, floats);
    }
  }
}

// Rows in memory: pixels of channels. A plain row is one pixel whose channels are not padded; then the end is.
struct Layout {
  int64_t rows, pixels, channels, stored_channels;
  __host__ __device__ int64_t row_elements() const { return pixels * stored_channels; }
  int64_t stored() const { return padded(rows * row_elements()); }
};

// Any layout, element by element: neighbours in memory are far apart in the order that the mask counts in.
template <typename T>
__global__ void drop_elements(const StepContext* context, Mask mask, Layout layout, int64_t stored, const T* from,
                              T* to) {
  const uint64_t key = mask.key(*context);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < stored; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / layout.row_elements(), at = i % layout.row_elements();
    const int64_t pixel = at / layout.stored_channels, channel = at % layout.stored_channels;
    float value = 0;
    if (row < layout.rows && channel < layout.channels) {
      const uint64_t e = channel * layout.pixels + pixel;
      const PhiloxBlock block = philox(key, context->first_row + row, e / 4);
      // Selected in registers: an index would put the block into memory.
      const uint32_t low = e % 2 ? block.at[1] : block.at[0], high = e % 2 ? block.at[3] : block.at[2];
      value = mask.apply(e % 4 < 2 ? low : high, to_float(from[i]));
    }
    to[i] = from_float<T>(value);
  }
}

Layout layout_of(const Shape& shape) {
  if (shape.rank() == 4) {
    const Image image(shape);
    return {image.n, image.h * image.w, image.channels, image.c};
  }
  const int64_t row_elements = shape.elements() / shape[0];
  return {shape[0], 1, row_elements, row_elements};
}

template <typename T>
Task drop_task(const Device& device, const Mask& mask, const Layout& layout, const Bindings& at) {
  const T* from = at.read<T>(0);
  T* to = at.write<T>(0);
  const int64_t stored = layout.stored();
  if (layout.pixels == 1 && layout.channels % Vector<T>::kSize == 0 && layout.rows * layout.channels == stored) {
    const int64_t row_vectors = layout.channels / Vector<T>::kSize;
    const auto threads = static_cast<int>(std::min<int64_t>((row_vectors + 31) / 32 * 32, kThreads));
    const dim3 grid(grid_for(device, row_vectors, threads, kBlocks),
                    static_cast<unsigned>(std::min(layout.rows, kMostRows)));
    return [=](const StepContext&) {
      drop_rows<<<grid, threads, 0, device.stream>>>(device.context, mask, layout.rows, row_vectors, from, to);
      MILLRACE_LAUNCHED("drop_rows");
    };
  }
  const int grid = grid_for(device, stored, kThreads, kBlocks);
  return [=](const StepContext&) {
    drop_elements<<<grid, kThreads, 0, device.stream>>>(device.context, mask, layout, stored, from, to);
    MILLRACE_LAUNCHED("drop_elements");
  };
}

}  // namespace

Kernel prepare_dropout(const Device& device, const NodeView& view) {
  if (view.node.pass != Pass::Forward && view.node.pass != Pass::InputGrad) refuse_pass(view);
  const DType dtype = dtype_of_read(view, 0);
  const Mask mask(view.node.name, view.attrs<graph::DropoutAttrs>().probability);
  const Layout layout = layout_of(view.read(0));
  Kernel kernel;
  kernel.algorithm = "philox";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() { return drop_task<T>(device, mask, layout, at); });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
