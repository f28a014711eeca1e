// The two 16-bit float formats, widened to float. Every value of theirs is exact there.
#pragma once

#include <bit>
#include <cstdint>

namespace millrace::state {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(bits & 0x7FFF) << 13;  // exponent and fraction, at float's places
  constexpr uint32_t kExponentMask = 0x1Fu << 23;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  if ((rest & kExponentMask) == kExponentMask) {  // infinity or not a number
    return std::bit_cast<float>(sign | (rest + 2 * kRebias));
  }
  if ((rest & kExponentMask) == 0) {  // zero or subnormal: the fraction counts in 2^-24
    const float magnitude = static_cast<float>(bits & 0x03FF) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (rest + kRebias));
}

}  // namespace millrace::state
