// The middle of several measurements: what disturbed a few of them changes nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace millrace {

// Of an even number the greater of the two in the middle; 0 if there is none. Changes the order of the values.
inline double median(std::span<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace millrace
