// Results too large for the caches, written past them: a plain store reads a line first, keeps it, and pushes out what
// could still be used, only to have left the cache itself when it is read.
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu {

// Whether a tensor is one of these. (Of ResNet-50's, with 32 MiB of last cache: half as much was slower, twice as much
// too.)
inline bool exceeds_caches(const BlockedShape& shape) {
  constexpr int64_t kMostBytes = 12 << 20;
  return shape.vectors() * static_cast<int64_t>(sizeof(Lanes)) > kMostBytes;
}

inline void store_past_caches(Lanes& to, Lanes value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(reinterpret_cast<float*>(&to), reinterpret_cast<__m512>(value));
#elif defined(__AVX__)
  _mm256_stream_ps(reinterpret_cast<float*>(&to), reinterpret_cast<__m256>(value));
#else
  to = value;
#endif
}

// After the last of them: other threads that are told so will find what was stored.
inline void finish_past_caches() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

}  // namespace millrace::backend::cpu
