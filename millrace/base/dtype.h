// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

enum class DType : uint8_t { F32, F64, I32, U8, F16, BF16 };

constexpr size_t bytes_of(DType type) {
  switch (type) {
    case DType::F32: return 4;
    case DType::F64: return 8;
    case DType::I32: return 4;
    case DType::U8: return 1;
    case DType::F16:
    case DType::BF16: return 2;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::F32: return "f32";
    case DType::F64: return "f64";
    case DType::I32: return "i32";
    case DType::U8: return "u8";
    case DType::F16: return "f16";
    case DType::BF16: return "bf16";
  }
  return "?";
}

// Sixteen bits: parameters have a master copy in f32 beside them.
constexpr bool is_half(DType type) { return type == DType::F16 || type == DType::BF16; }

// What sums, statistics and the parameters of normalisation are kept in where values are of this type.
constexpr DType wide(DType type) { return is_half(type) ? DType::F32 : type; }

}  // namespace millrace
