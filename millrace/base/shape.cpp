#include "millrace/base/shape.h"

namespace millrace {

std::string Shape::str() const {
  if (rank_ == 0) return "scalar";
  std::string text;
  for (int64_t extent : *this) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text;
}

}  // namespace millrace
