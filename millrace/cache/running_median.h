// The median of the last few measurements: one that was disturbed changes nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "millrace/base/median.h"

namespace millrace::cache {

class RunningMedian {
 public:
  static constexpr size_t kWindow = 9;

  void add(double value) { values_[count_++ % kWindow] = value; }
  bool empty() const { return count_ == 0; }
  double value() const {
    std::array<double, kWindow> there = values_;
    return median(std::span(there).first(std::min(count_, kWindow)));
  }

 private:
  std::array<double, kWindow> values_{};
  size_t count_ = 0;
};

}  // namespace millrace::cache
