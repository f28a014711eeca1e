#include "millrace/data/sampler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace millrace::data {
namespace {

std::vector<int64_t> visited(const Permutation& order) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < order.length(); ++i) samples.push_back(order[i]);
  return samples;
}

void expect_each_once(const std::vector<int64_t>& samples) {
  std::vector<int> visits(samples.size(), 0);
  for (const int64_t sample : samples) {
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, static_cast<int64_t>(samples.size()));
    ++visits[static_cast<size_t>(sample)];
  }
  for (const int count : visits) ASSERT_EQ(count, 1);
}

TEST(Sampler, EveryShortEpochVisitsEachSampleOnce) {
  for (int64_t length = 1; length <= 300; ++length) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) expect_each_once(visited(epoch_order(length, 7, epoch)));
  }
}

TEST(Sampler, EveryLongEpochVisitsEachSampleOnce) {
  for (const int64_t length : {4096, 4097, 65535, 100003, 1281167})
    expect_each_once(visited(epoch_order(length, 1, 2)));
}

TEST(Sampler, OrderIsTheSameForTheSameSeedAndEpoch) {
  EXPECT_EQ(visited(epoch_order(1000, 5, 3)), visited(epoch_order(1000, 5, 3)));
}

TEST(Sampler, OrderDiffersBetweenEpochsAndSeeds) {
  EXPECT_NE(visited(epoch_order(1000, 5, 3)), visited(epoch_order(1000, 5, 4)));
  EXPECT_NE(visited(epoch_order(1000, 5, 3)), visited(epoch_order(1000, 6, 3)));
  EXPECT_NE(visited(epoch_order(20, 5, 0)), visited(epoch_order(20, 5, 1)));
}

TEST(Sampler, OrderLooksShuffled) {
  // In a random order a sample moves a third of the length on average, and few stay where they are.
  for (const int64_t length : {100, 5000, 100003}) {
    const std::vector<int64_t> samples = visited(epoch_order(length, 11, 0));
    double moved = 0;
    int fixed = 0, neighbours = 0;
    for (int64_t i = 0; i < length; ++i) {
      moved += std::abs(static_cast<double>(samples[i] - i));
      fixed += samples[i] == i;
      neighbours += i > 0 && std::abs(samples[i] - samples[i - 1]) == 1;
    }
    EXPECT_NEAR(moved / static_cast<double>(length * length), 1.0 / 3, length < 1000 ? 0.08 : 0.02) << length;
    EXPECT_LT(fixed, 8) << length;
    EXPECT_LT(neighbours, 12) << length;
  }
}

TEST(Sampler, HugeEpochNeedsNoMemory) {
  const int64_t length = (int64_t{1} << 40) + 3;
  const Permutation order = epoch_order(length, 0, 0);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(order[i], 0);
    EXPECT_LT(order[i], length);
  }
}

}  // namespace
}  // namespace millrace::data
