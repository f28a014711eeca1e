// What pooling kernels share: which pixel a thread works on, and how the launches are cut where there are too many.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/vector.cuh"

namespace millrace::backend::cuda {

constexpr int kPoolThreads = 256;
constexpr int kPoolBlocks = 32;  // per multiprocessor, at most

// Division by a number known before the launch, of numbers below 2^31: an add, a multiply and a shift.
struct Divider {
  uint32_t divisor, factor, shift = 0;

  explicit Divider(int64_t by) : divisor(static_cast<uint32_t>(by)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) - divisor) * (uint64_t{1} << 32) / divisor + 1);
  }
  __device__ uint32_t quotient(uint32_t number) const { return (__umulhi(number, factor) + number) >> shift; }
  // Leaves the quotient, gives the remainder.
  __device__ uint32_t split(uint32_t& number) const {
    const uint32_t whole = number;
    number = quotient(whole);
    return whole - number * divisor;
  }
};

// Which sample, row, column and vector of channels an index means.
struct Place {
  uint32_t n, h, w, v;
};
struct Places {
  uint32_t count;
  Divider vectors, width, height;

  Places(int64_t n, int64_t h, int64_t w, int64_t v)
      : count(static_cast<uint32_t>(n * h * w * v)), vectors(v), width(w), height(h) {}
  __device__ Place at(uint32_t index) const {
    Place place;
    place.v = vectors.split(index);
    place.w = width.split(index);
    place.h = height.split(index);
    place.n = index;
    return place;
  }
};

// Pixels in vectors, of as many samples as 31 bits can number.
struct Plane {
  uint32_t h, w, vectors;

  __device__ bool inside(int ih, int iw) const {
    return static_cast<uint32_t>(ih) < h && static_cast<uint32_t>(iw) < w;
  }
  __device__ uint32_t at(const Place& place, uint32_t ih, uint32_t iw) const {
    return ((place.n * h + ih) * w + iw) * vectors + place.v;
  }
};

__device__ inline uint32_t first_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline uint32_t index_stride() { return gridDim.x * blockDim.x; }

// What goes in and what comes out, a few samples at a time where there are more vectors than 31 bits can number.
struct Sides {
  Image in, out;
  int64_t vector_size;

  Sides(const NodeView& view, const Shape& in_shape, const Shape& out_shape, DType dtype)
      : in(in_shape), out(out_shape), vector_size(16 / static_cast<int64_t>(bytes_of(dtype))) {
    if (std::max(in_vectors(), out_vectors()) > kMost) {
      throw std::invalid_argument(view.node.name + ": one sample of " + in_shape.str() + " is too large to pool");
    }
  }

  int64_t vectors() const { return in.c / vector_size; }
  Plane in_plane() const { return plane(in); }
  Plane out_plane() const { return plane(out); }

  // launch(samples, where they begin in the input, and in the output)
  template <typename Launch>
  void by_samples(const Launch& launch) const {
    const int64_t most = kMost / std::max(in_vectors(), out_vectors());
    for (int64_t first = 0; first < in.n; first += most) {
      launch(std::min(most, in.n - first), first * in_vectors() * vector_size, first * out_vectors() * vector_size);
    }
  }

 private:
  // A patch of a gradient may begin before its image and end behind it.
  static constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;

  int64_t in_vectors() const { return in.h * in.w * vectors(); }
  int64_t out_vectors() const { return out.h * out.w * vectors(); }
  Plane plane(const Image& image) const {
    return {static_cast<uint32_t>(image.h), static_cast<uint32_t>(image.w), static_cast<uint32_t>(vectors())};
  }
};

// Pooling has no weights.
inline void check_pass(const NodeView& view) {
  const graph::Pass pass = view.node.pass;
  if (pass == graph::Pass::WeightGrad || pass == graph::Pass::Update) refuse_pass(view);
}

inline Kernel kernel_of(const char* algorithm, std::function<Task(const Bindings&)> bind) {
  Kernel kernel;
  kernel.algorithm = algorithm;
  kernel.bind = std::move(bind);
  return kernel;
}

}  // namespace millrace::backend::cuda
