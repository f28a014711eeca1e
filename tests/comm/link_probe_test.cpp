#include "millrace/comm/link_probe.h"

#include <gtest/gtest.h>

namespace millrace::comm {
namespace {

TEST(LinkProbe, ThreadsHaveABandwidthAndALatency) {
  const LinkFigures figures = probe_threads({.large_bytes = 1 << 20, .large_repeats = 3, .small_repeats = 20});
  EXPECT_GT(figures.bytes_per_s, 0);
  EXPECT_GT(figures.latency_s, 0);
  EXPECT_LT(figures.latency_s, 10);
}

}  // namespace
}  // namespace millrace::comm
