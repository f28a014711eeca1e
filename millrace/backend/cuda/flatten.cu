// Between N x H x W x C with padded channels and plain rows in the order C, H, W: a transposition of pixels and
// channels, sample by sample.
#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

constexpr int kTile = 32;  // a block moves kTile pixels by kTile channels through shared memory
constexpr int kRows = 8;   // of threads

struct Geometry {
  int64_t samples, stored;  // stored: elements of the plain side, with padding
  int64_t pixels, channels, stored_channels;
  int64_t pixel_tiles, channel_tiles;

  explicit Geometry(const Image& image)
      : samples(image.n),
        stored(padded(image.pixels() * image.channels)),
        pixels(image.h * image.w),
        channels(image.channels),
        stored_channels(image.c),
        pixel_tiles((pixels + kTile - 1) / kTile),
        channel_tiles((stored_channels + kTile - 1) / kTile) {}

  __device__ int64_t image_at(int64_t n, int64_t p, int64_t c) const { return (n * pixels + p) * stored_channels + c; }
  __device__ int64_t row_at(int64_t n, int64_t p, int64_t c) const { return (n * channels + c) * pixels + p; }
};

// Calls visit(pixel, channel, tile element) with neighbouring threads along channels, or along pixels.
template <bool kAlongChannels, typename Visit>
__device__ inline void over_tile(int64_t first_pixel, int64_t first_channel, const Visit& visit) {
#pragma unroll
  for (int row = 0; row < kTile; row += kRows) {
    const int along = threadIdx.x, across = row + threadIdx.y;
    const int p = kAlongChannels ? across : along, c = kAlongChannels ? along : across;
    visit(first_pixel + p, first_channel + c, p * (kTile + 1) + c);
  }
}

template <bool kToImage, typename T>
__global__ void transpose(Geometry g, const T* from, T* to) {
  __shared__ T tile[kTile * (kTile + 1)];
  int64_t block = blockIdx.x;
  const int64_t first_pixel = block % g.pixel_tiles * kTile;
  block /= g.pixel_tiles;
  const int64_t first_channel = block % g.channel_tiles * kTile;
  const int64_t n = block / g.channel_tiles;
  over_tile<!kToImage>(first_pixel, first_channel, [&](int64_t p, int64_t c, int element) {
    if (p >= g.pixels || c >= g.channels) return;
    tile[element] = from[kToImage ? g.row_at(n, p, c) : g.image_at(n, p, c)];
  });
  __syncthreads();
  over_tile<kToImage>(first_pixel, first_channel, [&](int64_t p, int64_t c, int element) {
    if (p >= g.pixels || c >= (kToImage ? g.stored_channels : g.channels)) return;
    const T value = c < g.channels ? tile[element] : from_float<T>(0);
    to[kToImage ? g.image_at(n, p, c) : g.row_at(n, p, c)] = value;
  });
  // What pads the end of plain rows.
  const int64_t i = g.row_at(g.samples, 0, 0) + threadIdx.x;
  if (!kToImage && blockIdx.x == 0 && threadIdx.y == 0 && i < g.stored) to[i] = from_float<T>(0);
}

Kernel copy_kernel(const Device& device, size_t bytes) {
  Kernel kernel;
  kernel.algorithm = "copy";
  kernel.bind = [=](const Bindings& at) -> Task {
    return [=, from = at.reads[0], to = at.writes[0]](const StepContext&) {
      if (from != to) MILLRACE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device.stream));
    };
  };
  return kernel;
}

template <typename T>
Task transpose_task(const Device& device, const Image& image, bool to_image, const Bindings& at) {
  const Geometry g(image);
  const auto blocks = static_cast<unsigned>(image.n * g.channel_tiles * g.pixel_tiles);
  const T* from = at.read<T>(0);
  T* to = at.write<T>(0);
  return [=](const StepContext&) {
    const dim3 threads(kTile, kRows);
    if (to_image) {
      transpose<true><<<blocks, threads, 0, device.stream>>>(g, from, to);
    } else {
      transpose<false><<<blocks, threads, 0, device.stream>>>(g, from, to);
    }
    MILLRACE_LAUNCHED("flatten");
  };
}

}  // namespace

Kernel prepare_flatten(const Device& device, const NodeView& view) {
  const Pass pass = view.node.pass;
  if (pass != Pass::Forward && pass != Pass::Evaluate && pass != Pass::InputGrad) refuse_pass(view);
  const bool to_image = pass == Pass::InputGrad;
  const DType dtype = dtype_of_read(view, 0);
  const Shape& x = to_image ? view.write(0) : view.read(0);
  const size_t bytes = static_cast<size_t>(padded(x.elements())) * bytes_of(dtype);
  if (x.rank() != 4) return copy_kernel(device, bytes);
  const Image image(x);
  if (image.h * image.w == 1 && image.c == image.channels) return copy_kernel(device, bytes);
  Kernel kernel;
  kernel.algorithm = "tiles";
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() { return transpose_task<T>(device, image, to_image, at); });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
