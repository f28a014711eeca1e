// Matrices whose published files have rows and columns exchanged.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::state {

// Of a matrix with so many rows and columns, row-major; the result has as many columns and rows.
inline std::vector<float> transposed(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  std::vector<float> out(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      out[static_cast<size_t>(column * rows + row)] = matrix[static_cast<size_t>(row * columns + column)];
    }
  }
  return out;
}

}  // namespace millrace::state
