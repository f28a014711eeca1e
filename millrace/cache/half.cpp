// Without branches, so that compilers turn the loops into vectors of whatever the target has.
#include "millrace/cache/half.h"

#include <bit>
#include <cstddef>

namespace millrace::cache {
namespace {

constexpr uint32_t kRebias = (127u - 15u) << 23;
constexpr uint32_t kInfinity = 0x7F800000u;
constexpr uint32_t kSmallestNormal = (127u - 14u) << 23;  // of a half
constexpr uint32_t kTooLarge = (127u + 16u) << 23;        // 2^16; what rounds up to it becomes infinity by itself

// Both are computed: a condition would keep the loops from becoming vectors, since additions of floats may trap.
uint32_t select(bool first, uint32_t one, uint32_t other) {
  const uint32_t mask = 0u - static_cast<uint32_t>(first);
  return (one & mask) | (other & ~mask);
}

uint32_t half_of(uint32_t magnitude) {
  const uint32_t normal = (magnitude - kRebias + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  // Where only multiples of 2^-24 are left, adding 1/2 leaves them in the lowest bits, rounded as float rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t large = select(magnitude > kInfinity, 0x7E00u, 0x7C00u);
  return select(magnitude >= kTooLarge, large, select(magnitude < kSmallestNormal, subnormal, normal));
}

}  // namespace

bool to_half(std::span<const float> values, std::span<uint16_t> halves) {
  const size_t count = values.size();
  const float* from = values.data();
  uint16_t* to = halves.data();
  uint32_t overflows = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t half = half_of(magnitude);
    overflows |= static_cast<uint32_t>(half == 0x7C00u) & static_cast<uint32_t>(magnitude < kInfinity);
    to[i] = static_cast<uint16_t>((bits >> 16 & 0x8000u) | half);
  }
  return overflows == 0;
}

void from_half(std::span<const uint16_t> halves, std::span<float> values) {
  const size_t count = halves.size();
  const uint16_t* from = halves.data();
  float* to = values.data();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t sign = static_cast<uint32_t>(from[i] & 0x8000) << 16;
    const uint32_t rest = static_cast<uint32_t>(from[i] & 0x7FFF) << 13;  // exponent and fraction, at float's places
    const uint32_t large = rest + 2 * kRebias;                            // infinity or not a number
    // Zero and subnormals: the fraction under an exponent of 2^-14, less the one that it hides.
    const uint32_t small =
        std::bit_cast<uint32_t>(std::bit_cast<float>(rest + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal));
    const uint32_t finite = select(rest < (1u << 23), small, rest + kRebias);
    to[i] = std::bit_cast<float>(sign | select(rest >= (0x1Fu << 23), large, finite));
  }
}

}  // namespace millrace::cache
