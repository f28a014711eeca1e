#include "millrace/runtime/prefix_keeper.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "millrace/backend/cuda/cuda_backend.h"
#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

constexpr size_t kRowBytes = 20'000;
constexpr int64_t kRows = 13;

std::vector<std::byte> rows_of(int number) {
  std::vector<std::byte> rows(kRowBytes * kRows);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>((i / 7 + number * 31) & 0xff);
  return rows;
}

// Each micro-batch takes the place of the one before, as soon as keep() returns.
void expect_every_row_is_stored(backend::Backend& backend) {
  std::mutex mutex;
  std::map<int64_t, std::vector<std::byte>> stored;
  auto* made = static_cast<std::byte*>(backend.allocate(kRowBytes * kRows));
  {
    PrefixKeeper keeper(backend, kRowBytes, kRows, [&](int64_t sample, std::span<const std::byte> row) {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(stored.emplace(sample, std::vector<std::byte>(row.begin(), row.end())).second) << sample;
    });
    for (int number = 0; number < 20; ++number) {
      const std::vector<std::byte> rows = rows_of(number);
      backend.put(made, rows.data(), rows.size());
      std::vector<int64_t> samples(static_cast<size_t>(number % (kRows + 1)));  // short ones too
      std::iota(samples.begin(), samples.end(), number * kRows);
      keeper.keep(made, samples);
    }
    keeper.finish();
    size_t expected = 0;
    for (int number = 0; number < 20; ++number) expected += static_cast<size_t>(number % (kRows + 1));
    EXPECT_EQ(stored.size(), expected);
  }
  for (const auto& [sample, row] : stored) {
    const std::vector<std::byte> rows = rows_of(static_cast<int>(sample / kRows));
    EXPECT_TRUE(std::equal(row.begin(), row.end(), rows.begin() + sample % kRows * static_cast<int64_t>(kRowBytes)));
  }
  backend.release(made, kRowBytes * kRows);
}

TEST(PrefixKeeper, EveryRowIsStored) { expect_every_row_is_stored(*make("reference")); }

TEST(CudaPrefixKeeper, EveryRowIsStored) {
  if (backend::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  expect_every_row_is_stored(*backend::make_cuda_backend({}, kMomentum));
}

TEST(PrefixKeeper, WhatCannotBeStoredIsToldToTheWorker) {
  const auto backend = make("reference");
  std::vector<std::byte> rows = rows_of(0);
  const std::vector<int64_t> samples{4, 5, 6};
  PrefixKeeper keeper(*backend, kRowBytes, kRows, [](int64_t sample, std::span<const std::byte>) {
    if (sample == 5) throw std::runtime_error("sample 5 cannot be stored");
  });
  keeper.keep(rows.data(), samples);
  EXPECT_THROW(keeper.finish(), std::runtime_error);
  EXPECT_THROW(keeper.keep(rows.data(), samples), std::runtime_error);
}

}  // namespace
}  // namespace millrace::runtime
