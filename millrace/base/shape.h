// The extents of a tensor. A value type of fixed size: shapes are compared and copied freely while a
// run is prepared, and never looked at while it runs.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace millrace {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    assert(extents.size() <= kMaxRank);
    for (int64_t extent : extents) extents_[rank_++] = extent;
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const {
    assert(axis >= 0 && axis < rank_);
    return extents_[axis];
  }
  void append(int64_t extent) {
    assert(rank_ < kMaxRank);
    extents_[rank_++] = extent;
  }

  int64_t elements() const {
    int64_t count = 1;
    for (int64_t extent : *this) count *= extent;
    return count;
  }

  // As a matrix: rows of the last axis.
  int64_t width() const { return rank_ == 0 ? 1 : extents_[rank_ - 1]; }
  int64_t rows() const { return width() == 0 ? 0 : elements() / width(); }

  const int64_t* begin() const { return extents_.data(); }
  const int64_t* end() const { return extents_.data() + rank_; }
  bool operator==(const Shape&) const = default;

  // "16x3x224x224"; "scalar" for rank 0.
  std::string str() const;

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace millrace
