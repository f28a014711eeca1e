// The machine's multiply-add peak, measured: independent chains in registers, enough to hide their latency.
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/cpu_backend.h"

namespace millrace::backend {
namespace {

constexpr int kChains = 12;
constexpr int64_t kRounds = 4'000'000;

// The chains are named one by one: an array of vectors would be kept in memory by the compiler.
float chains(float seed) {
  using cpu::Lanes;
  const Lanes a = cpu::splat(0.9999f), b = cpu::splat(seed);
  // Different starts, or the compiler would see twelve times the same.
  Lanes c0 = b, c1 = b + 1, c2 = b + 2, c3 = b + 3, c4 = b + 4, c5 = b + 5;
  Lanes c6 = b + 6, c7 = b + 7, c8 = b + 8, c9 = b + 9, c10 = b + 10, c11 = b + 11;
  for (int64_t i = 0; i < kRounds; ++i) {
    c0 = c0 * a + b, c1 = c1 * a + b, c2 = c2 * a + b, c3 = c3 * a + b;
    c4 = c4 * a + b, c5 = c5 * a + b, c6 = c6 * a + b, c7 = c7 * a + b;
    c8 = c8 * a + b, c9 = c9 * a + b, c10 = c10 * a + b, c11 = c11 * a + b;
  }
  const Lanes sum = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11));
  return sum[0];
}

}  // namespace

double measure_peak_gflops(int threads) {
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    float sink = 0;
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : sink)
    sink += chains(static_cast<float>(repeat + 1) * 1e-4f);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double flops = 2.0 * cpu::kBlock * kChains * static_cast<double>(kRounds) * threads;
    if (sink != 0) best = std::max(best, flops / seconds * 1e-9);
  }
  return best;
}

}  // namespace millrace::backend
