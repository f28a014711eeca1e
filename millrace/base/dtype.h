// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

enum class DType : uint8_t { F32, F64, I32, U8 };

constexpr size_t bytes_of(DType type) {
  switch (type) {
    case DType::F32: return 4;
    case DType::F64: return 8;
    case DType::I32: return 4;
    case DType::U8: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::F32: return "f32";
    case DType::F64: return "f64";
    case DType::I32: return "i32";
    case DType::U8: return "u8";
  }
  return "?";
}

}  // namespace millrace
