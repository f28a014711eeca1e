#include "millrace/state/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::state {
namespace {

TEST(FloatFormats, HalfPrecisionHasItsKnownValues) {
  EXPECT_EQ(from_f16(0x3C00), 1.0f);
  EXPECT_EQ(from_f16(0xC000), -2.0f);
  EXPECT_EQ(from_f16(0x7BFF), 65504.0f);  // the largest
  EXPECT_EQ(from_f16(0x0400), 0x1p-14f);  // the smallest normal
  EXPECT_EQ(from_f16(0x0001), 0x1p-24f);  // the smallest of all
  EXPECT_EQ(from_f16(0x83FF), -1023 * 0x1p-24f);
  EXPECT_EQ(from_f16(0x7C00), INFINITY);
  EXPECT_EQ(from_f16(0xFC00), -INFINITY);
  EXPECT_TRUE(std::isnan(from_f16(0x7E00)));
  EXPECT_TRUE(std::signbit(from_f16(0x8000)));
}

#ifdef __FLT16_MANT_DIG__
TEST(FloatFormats, HalfPrecisionAgreesWithTheCompilerOnEveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const float expected = static_cast<float>(half), value = from_f16(static_cast<uint16_t>(bits));
    ASSERT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << bits;
  }
}
#endif

TEST(FloatFormats, BrainFloatIsTheUpperHalfOfAFloat) {
  EXPECT_EQ(from_bf16(0x3F80), 1.0f);
  EXPECT_EQ(from_bf16(0xC049), -3.140625f);
  EXPECT_EQ(from_bf16(0x7F80), INFINITY);
}

}  // namespace
}  // namespace millrace::state
