#include "millrace/cache/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace millrace::cache {
namespace {

uint16_t one_to_half(float value) {
  uint16_t half = 0;
  to_half({&value, 1}, {&half, 1});
  return half;
}

float one_from_half(uint16_t half) {
  float value = 0;
  from_half({&half, 1}, {&value, 1});
  return value;
}

TEST(Half, EveryHalfComesBackAsItWas) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = one_from_half(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7FFF, 0x7C00u);
      EXPECT_TRUE(std::isnan(one_from_half(one_to_half(value))));
    } else {
      ASSERT_EQ(one_to_half(value), bits);
    }
  }
  EXPECT_EQ(one_from_half(0x3C00), 1.0f);
  EXPECT_EQ(one_from_half(0xC000), -2.0f);
  EXPECT_EQ(one_from_half(0x7BFF), 65504.0f);
  EXPECT_EQ(one_from_half(0x0001), 0x1p-24f);
  EXPECT_EQ(one_from_half(0xFC00), -INFINITY);
  EXPECT_TRUE(std::signbit(one_from_half(0x8000)));
}

TEST(Half, ErrorIsAtMostHalfOfTheLastPlace) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!(std::abs(value) < 65520.0f)) continue;
    const float near = one_from_half(one_to_half(value));
    ASSERT_LE(std::abs(value - near), std::max(std::abs(value) * 0x1p-11f, 0x1p-25f)) << value;
  }
}

TEST(Half, TiesGoToEven) {
  EXPECT_EQ(one_to_half(1 + 0x1p-11f), 0x3C00);
  EXPECT_EQ(one_to_half(1 + 3 * 0x1p-11f), 0x3C02);
  EXPECT_EQ(one_to_half(0x1p-25f), 0x0000);
  EXPECT_EQ(one_to_half(3 * 0x1p-25f), 0x0002);
}

#ifdef __FLT16_MANT_DIG__
TEST(Half, RoundsAsTheCompilerDoes) {
  std::mt19937 random(2);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(one_to_half(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
  }
}
#endif

TEST(Half, FiniteValuesThatDoNotFitAreTold) {
  std::vector<float> values(1000, 1.0f);
  std::vector<uint16_t> halves(values.size());
  values[10] = INFINITY;
  values[11] = std::numeric_limits<float>::quiet_NaN();
  values[12] = 65519.0f;
  EXPECT_TRUE(to_half(values, halves));
  for (const float large : {65520.0f, -65520.0f, 1e6f, -3e38f}) {
    values[997] = large;
    EXPECT_FALSE(to_half(values, halves)) << large;
  }
}

}  // namespace
}  // namespace millrace::cache
