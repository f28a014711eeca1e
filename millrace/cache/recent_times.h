// The last few measurements of a time. One that was disturbed does not change their median, and the least is what it
// takes undisturbed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "millrace/base/median.h"

namespace millrace::cache {

class RecentTimes {
 public:
  static constexpr size_t kWindow = 9;

  void add(double seconds) { values_[count_++ % kWindow] = seconds; }
  bool empty() const { return count_ == 0; }
  double median() const {
    std::array<double, kWindow> there = values_;
    return millrace::median(std::span(there).first(size()));
  }
  double least() const { return empty() ? 0 : *std::min_element(values_.begin(), values_.begin() + size()); }

 private:
  size_t size() const { return std::min(count_, kWindow); }

  std::array<double, kWindow> values_{};
  size_t count_ = 0;
};

}  // namespace millrace::cache
