#include "millrace/state/normals.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace millrace::state {
namespace {

// As many pairs as stay in the first-level cache. The loops over them are plain arithmetic without calls or
// branches, so the compiler makes vector code of them.
constexpr int kBlocks = 64;
constexpr int kPairs = 2 * kBlocks;

float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Vector units of the base instruction set convert signed words only, hence in two halves.
float to_float(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 16)) * 65536.0f +
         static_cast<float>(static_cast<int32_t>(word & 0xFFFF));
}

// -2 ln((a + 1) / 2^32): mantissa times power of two, then the polynomial of the Cephes library for ln(1 + f).
float minus_two_log(uint32_t a) {
  const float x = static_cast<float>(static_cast<int32_t>(a >> 16)) * 65536.0f +
                  (static_cast<float>(static_cast<int32_t>(a & 0xFFFF)) + 1.0f);
  // The mantissa in [sqrt(1/2), sqrt(2)), so that f is small on either side of zero.
  constexpr uint32_t kHalfRoot = 0x3F3504F3;  // sqrt(1/2)
  const uint32_t from_half_root = float_to_bits(x) - kHalfRoot;
  const int32_t exponent = static_cast<int32_t>(from_half_root) >> 23;
  const float mantissa = bits_to_float((from_half_root & 0x007FFFFF) + kHalfRoot);
  // Close to 1 the difference from 1 is known exactly as an integer; rounding x first would lose it.
  const float f = exponent == 32 ? to_float(~a) * -0x1p-32f : mantissa - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float ln_mantissa = f + (f * f * f * p - 0.5f * f * f);
  return -2.0f * (ln_mantissa + static_cast<float>(exponent - 32) * 0.693147181f);
}

struct Turn {
  float cosine, sine;
};

// Of the angle 2 pi b / 2^32: the nearest quarter turn in whole numbers, the rest by Cephes' polynomials.
Turn turn(uint32_t b) {
  const uint32_t quarter = (b + (1u << 29)) >> 30;
  const auto rest = static_cast<int32_t>(b - (quarter << 30));
  const float t = static_cast<float>(rest) * 1.46291807926715968e-9f;  // 2 pi / 2^32
  const float z = t * t;
  const float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * t + t;
  const float c =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
  const bool odd = quarter & 1;
  const uint32_t cosine_sign = ((quarter + 1) & 2) << 30, sine_sign = (quarter & 2) << 30;
  return {bits_to_float(float_to_bits(odd ? s : c) ^ cosine_sign),
          bits_to_float(float_to_bits(odd ? c : s) ^ sine_sign)};
}

void fill_chunk(const RandomStream& stream, uint64_t first_block, float scale, float* out) {
  uint32_t a[kPairs], b[kPairs];
  float radius[kPairs];
  for (int i = 0; i < kBlocks; ++i) {
    const RandomBlock words = stream.at(first_block + static_cast<uint64_t>(i));
    a[2 * i] = words[0];
    b[2 * i] = words[1];
    a[2 * i + 1] = words[2];
    b[2 * i + 1] = words[3];
  }
  for (int i = 0; i < kPairs; ++i) radius[i] = minus_two_log(a[i]);
  for (int i = 0; i < kPairs; ++i) radius[i] = std::sqrt(radius[i]) * scale;
  for (int i = 0; i < kPairs; ++i) {
    const Turn unit = turn(b[i]);
    out[2 * i] = radius[i] * unit.cosine;
    out[2 * i + 1] = radius[i] * unit.sine;
  }
}

}  // namespace

void fill_normals(const RandomStream& stream, uint64_t first_block, float scale, std::span<float> out) {
  constexpr size_t kChunk = 4 * kBlocks;
  size_t done = 0;
  for (; done + kChunk <= out.size(); done += kChunk) fill_chunk(stream, first_block + done / 4, scale, &out[done]);
  if (done < out.size()) {
    float last[kChunk];
    fill_chunk(stream, first_block + done / 4, scale, last);
    std::copy_n(last, out.size() - done, &out[done]);
  }
}

}  // namespace millrace::state
