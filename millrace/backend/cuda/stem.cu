#include "millrace/backend/cuda/stem.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {
namespace {

template <typename T>
__global__ void fold_pixels(Fold f, const float* plain, T* to, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const int64_t k = i % f.stored_c, j = i / f.stored_c % f.stored_w, row = i / f.stored_c / f.stored_w;
    const int64_t h = row % f.stored_h, n = row / f.stored_h;
    const int dw = static_cast<int>(k % f.depth), dh = static_cast<int>(k / f.depth % f.depth);
    const int64_t c = k / (f.depth * f.depth);
    const int64_t ih = h * f.step - f.origin + dh, iw = j * f.step - f.origin + dw;
    const bool inside = c < f.channels && ih >= 0 && ih < f.h && iw >= 0 && iw < f.w;
    to[i] = from_float<T>(inside ? plain[((n * f.channels + c) * f.h + ih) * f.w + iw] : 0.0f);
  }
}

// Where in a stored filter the folded element lies; -1: nowhere.
__device__ int64_t place_of(const Fold& f, int64_t i) {
  const int64_t k = i % f.stored_c, s_tap = i / f.stored_c % f.taps, r_tap = i / f.stored_c / f.taps % f.taps;
  const int64_t o = i / f.stored_c / f.taps / f.taps;
  const int dw = static_cast<int>(k % f.depth), dh = static_cast<int>(k / f.depth % f.depth);
  const int64_t c = k / (f.depth * f.depth);
  const int64_t r = r_tap * f.step + dh + f.pad - f.origin;
  const int64_t s = s_tap * f.step + dw + f.pad - f.origin;
  if (c >= f.channels || r < 0 || r >= f.kernel || s < 0 || s >= f.kernel) return -1;
  return ((o * f.kernel + r) * f.kernel + s) * ((f.channels + 7) / 8 * 8) + c;
}

template <typename T>
__global__ void fold_filters(Fold f, const T* weight, T* folded, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const int64_t from = place_of(f, i);
    folded[i] = from < 0 ? from_float<T>(0) : weight[from];
  }
}

// What no folded element maps to was cleared before.
template <typename T, typename Out>
__global__ void unfold_filters(Fold f, const T* folded, Out* weight, int64_t elements) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += stride) {
    const int64_t to = place_of(f, i);
    if (to >= 0) weight[to] = from_float<Out>(to_float(folded[i]));
  }
}

}  // namespace

std::optional<Fold> stem_fold(const graph::Graph& graph) {
  const graph::Op* stem = nullptr;
  for (const graph::Op& op : graph.ops) {
    for (graph::ValueId input : op.inputs) {
      if (input != graph.images) continue;
      if (stem || op.kind != graph::OpKind::Conv2d) return std::nullopt;
      stem = &op;
    }
  }
  if (!stem) return std::nullopt;
  const auto& attrs = std::get<graph::Conv2dAttrs>(stem->attrs);
  const graph::Window& v = attrs.window;
  const Shape &x = graph.values[graph.images].shape, &y = graph.values[stem->output].shape;
  const bool square = v.kernel_h == v.kernel_w && v.stride_h == v.stride_w && v.pad_h == v.pad_w;
  if (!square || v.dilation_h != 1 || v.dilation_w != 1 || attrs.groups != 1) return std::nullopt;

  Fold fold;
  fold.n = x[0], fold.channels = x[1], fold.h = x[2], fold.w = x[3];
  fold.kernel = v.kernel_h, fold.pad = v.pad_h;
  if (v.stride_h > 1) {
    const int s = v.stride_h;
    if (x[1] * s * s > 64 || v.kernel_h < s) return std::nullopt;
    fold.step = fold.depth = s;
    fold.origin = (v.pad_h + s - 1) / s * s;
    fold.taps = (v.kernel_h - 1 - v.pad_h + fold.origin) / s + 1;
  } else {
    if (x[1] * v.kernel_h * v.kernel_h > 32) return std::nullopt;
    fold.origin = v.pad_h;
    fold.depth = v.kernel_h;
  }
  fold.stored_h = y[2] + fold.taps - 1;
  fold.stored_w = y[3] + fold.taps - 1;
  // Whole vectors, as the matrix units want them; nobody else reads it.
  const int64_t vector = is_half(graph.dtype) ? 8 : 4;
  fold.stored_c = (x[1] * fold.depth * fold.depth + vector - 1) / vector * vector;
  return fold;
}

void fold_images(const Device& device, const Fold& fold, const float* plain, int64_t rows, void* to, DType dtype) {
  const int64_t elements = fold.elements() / fold.n * rows;
  with_type(dtype, [&]<typename T>() {
    fold_pixels<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(fold, plain, static_cast<T*>(to), elements);
  });
  MILLRACE_LAUNCHED("fold_pixels");
}

void fold_weight(const Device& device, const Fold& fold, const void* weight, int64_t filters, void* folded,
                 DType dtype) {
  const int64_t elements = filters * fold.taps * fold.taps * fold.stored_c;
  with_type(dtype, [&]<typename T>() {
    fold_filters<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(fold, static_cast<const T*>(weight),
                                                                             static_cast<T*>(folded), elements);
  });
  MILLRACE_LAUNCHED("fold_filters");
}

void unfold_weight(const Device& device, const Fold& fold, const void* folded, int64_t filters, void* weight,
                   DType folded_type, DType weight_type) {
  const int64_t elements = filters * fold.taps * fold.taps * fold.stored_c;
  const int64_t stored = filters * fold.kernel * fold.kernel * padded(fold.channels);
  MILLRACE_CUDA(cudaMemsetAsync(weight, 0, static_cast<size_t>(stored) * bytes_of(weight_type), device.stream));
  with_type(folded_type, [&]<typename T>() {
    with_type(weight_type, [&]<typename Out>() {
      unfold_filters<<<grid_for(device, elements, 256), 256, 0, device.stream>>>(fold, static_cast<const T*>(folded),
                                                                                 static_cast<Out*>(weight), elements);
    });
  });
  MILLRACE_LAUNCHED("unfold_filters");
}

}  // namespace millrace::backend::cuda
