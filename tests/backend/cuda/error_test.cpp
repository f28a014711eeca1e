// A kernel's failure is told by a later call, and leaves a process that cannot use the GPU any more: one is started for
// it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "millrace/backend/cuda/cuda_backend.h"

namespace millrace::backend {
namespace {

TEST(CudaError, NamesTheKernelBeforeIt) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto writes_nowhere = [] {
    try {
      make_cuda_backend({}, {})->scale(reinterpret_cast<float*>(256), 4, 2.0f);
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(writes_nowhere(), testing::ExitedWithCode(3),
              "illegal memory access.*cuda_backend.cpp.*the last of our kernels before it was scale .host_calls.cu:");
}

}  // namespace
}  // namespace millrace::backend
