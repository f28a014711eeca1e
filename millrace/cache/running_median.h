// The median of the last few measurements: one that was disturbed changes nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace millrace::cache {

class RunningMedian {
 public:
  static constexpr size_t kWindow = 9;

  void add(double value) { values_[count_++ % kWindow] = value; }
  bool empty() const { return count_ == 0; }
  // Of an even number the greater of the two in the middle; 0 if there is none.
  double value() const {
    if (empty()) return 0;
    std::array<double, kWindow> sorted = values_;
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count_, kWindow));
    const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
    std::nth_element(sorted.begin(), middle, end);
    return *middle;
  }

 private:
  std::array<double, kWindow> values_{};
  size_t count_ = 0;
};

}  // namespace millrace::cache
