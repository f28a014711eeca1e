// The exponential function of vectors: the library's is a call per element.
#pragma once

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu {

// Of numbers up to about 80; zero below -87, where floats get short of digits. Within 2 units of the last place: 2^n
// times a polynomial of what is left, which is at most ln(2) / 2 (Cephes' expf). Keeps NaN.
inline Lanes exponential(Lanes x) {
  constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves no digits behind the point
  const Lanes n = (x * kLog2E + kRound) - kRound;
  const Lanes r = (x - n * kHigh) - n * kLow;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const LaneMask exponent = (__builtin_convertvector(n, LaneMask) + 127) << 23;
  return select(x < -87.0f, Lanes{}, p * reinterpret_cast<const Lanes&>(exponent));
}

}  // namespace millrace::backend::cpu
