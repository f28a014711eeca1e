// What was left out of a data set, and why: with data.on_error: skip nothing is lost without a line here.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::data {

struct Skipped {
  int64_t left_out = 0;              // before the first sample was read: the set is smaller by these
  int64_t while_reading = 0;         // a sample that is broken counts once an epoch
  std::vector<std::string> reasons;  // the first few
};

class SkipLog {
 public:
  static constexpr size_t kKept = 10;  // reasons kept; the rest is only counted

  // What was added so far was left out of the set.
  void end_opening() {
    const std::lock_guard lock(mutex_);
    left_out_ = count_;
  }

  // Safe to call from several threads.
  void add(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    ++count_;
    if (reasons_.size() < kKept) reasons_.push_back(reason);
  }
  int64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  std::vector<std::string> reasons() const {
    const std::lock_guard lock(mutex_);
    return reasons_;
  }
  Skipped skipped() const {
    const std::lock_guard lock(mutex_);
    return {left_out_, count_ - left_out_, reasons_};
  }

 private:
  mutable std::mutex mutex_;
  int64_t count_ = 0;
  int64_t left_out_ = 0;
  std::vector<std::string> reasons_;
};

}  // namespace millrace::data
