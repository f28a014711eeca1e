// Floats as sixteen bits (IEEE 754 half precision), array by array: half the memory of a cache for a relative error of
// 2^-11, or an absolute one of 2^-25 where that is more.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::cache {

// To the nearest, ties to even; infinities and not-a-number stay what they are. False if a finite value is too large
// (65520 and above): then the error has no bound.
bool to_half(std::span<const float> values, std::span<uint16_t> halves);
void from_half(std::span<const uint16_t> halves, std::span<float> values);

}  // namespace millrace::cache
