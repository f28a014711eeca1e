// What every CUDA kernel of one worker shares: its stream, the step it computes for, and how the results of calls are
// checked.
//
// Layouts. A value of four axes lies N x H x W x C, its channels padded to a multiple of eight, so that every pixel is
// whole 16-byte vectors; a convolution's weight lies O x H x W x I, both kinds of channels padded. Padding channels
// are zero, and every kernel keeps them so. Everything else is plain; its end is padded to eight elements, in which
// anything may stand. Logits alone may have room behind each row (row_pitch.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "millrace/backend/backend.h"

namespace millrace::backend::cuda {

void check(cudaError_t status, const char* call, const char* file, int line);
#define MILLRACE_CUDA(call) ::millrace::backend::cuda::check((call), #call, __FILE__, __LINE__)

// After a kernel was launched. What it does wrong is seen later, by another call, which then names it.
struct Launch {
  const char* kernel = nullptr;
  const char* file = nullptr;
  int line = 0;
};
inline thread_local Launch last_launch;
inline void check_launch(const char* kernel, const char* file, int line) {
  check(cudaGetLastError(), kernel, file, line);
  last_launch = {kernel, file, line};
}
#define MILLRACE_LAUNCHED(kernel) ::millrace::backend::cuda::check_launch(kernel, __FILE__, __LINE__)

struct Device {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
  const StepContext* context = nullptr;  // device memory: what a task is run with, so that a captured graph stays valid
  unsigned* counters = nullptr;          // device memory: kNumCounters zeros; a kernel leaves them zero
  static constexpr int kNumCounters = 4096;
};

constexpr int64_t padded(int64_t channels) { return (channels + 7) / 8 * 8; }

// A value of four axes as it lies in memory.
struct Image {
  int64_t n, h, w, c;  // c: with padding
  int64_t channels;    // without

  explicit Image(const Shape& shape) : n(shape[0]), h(shape[2]), w(shape[3]), c(padded(shape[1])), channels(shape[1]) {}
  int64_t pixels() const { return n * h * w; }
  int64_t elements() const { return pixels() * c; }
};

// Elements a buffer takes with its padding.
inline int64_t stored_elements(const graph::Buffer& buffer) {
  const Shape& shape = buffer.shape;
  if (shape.rank() != 4) return padded(shape.elements());
  const int64_t first = buffer.param == graph::kNone ? shape[0] : padded(shape[0]);
  return first * padded(shape[1]) * shape[2] * shape[3];
}

inline DType dtype_of_read(const NodeView& view, int i) { return view.program.buffers[view.node.reads[i]].dtype; }
inline DType dtype_of_write(const NodeView& view, int i) { return view.program.buffers[view.node.writes[i]].dtype; }

}  // namespace millrace::backend::cuda
