// What a worker did and when: spans of time in memory that was set aside beforehand, and sums over those of training.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::runtime {

enum class Activity : uint8_t {
  Forward,
  Recompute,  // forward once more, before backward
  InputGrad,
  WeightGrad,
  Send,
  Receive,
  Reduce,
  Step,
  Data,
  Evaluate,
  kCount
};
const char* name_of(Activity activity);

// What kernels do.
constexpr bool is_compute(Activity activity) {
  return activity <= Activity::WeightGrad || activity == Activity::Step || activity == Activity::Evaluate;
}

struct Span {
  int64_t begin_ns = 0;  // of the steady clock
  int64_t end_ns = 0;
  int64_t microbatch = 0;  // counted over the run, or over one evaluation; of Reduce and Step: the update
  int stage = 0;
  Activity activity = Activity::Forward;
};

// Spans of a worker that are kept.
constexpr size_t kTraceSpans = 1 << 16;

// Spans that there was no room for: how many, and when the last of them ended.
struct LeftOut {
  int64_t spans = 0;
  int64_t until_ns = 0;
};

class Timeline {
 public:
  // Spans after the first `capacity` are not kept, only summed and counted.
  explicit Timeline(size_t capacity) { spans_.reserve(capacity); }

  static int64_t at_ns(std::chrono::steady_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  static int64_t now_ns() { return at_ns(std::chrono::steady_clock::now()); }

  void keep(const Span& span) {
    if (spans_.size() < spans_.capacity()) {
      spans_.push_back(span);
    } else {
      left_out_ = {left_out_.spans + 1, span.end_ns};
    }
  }
  void sum(const Span& span) {
    seconds_[static_cast<size_t>(span.activity)] += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  }

  const std::vector<Span>& spans() const { return spans_; }
  const LeftOut& left_out() const { return left_out_; }
  double seconds(Activity activity) const { return seconds_[static_cast<size_t>(activity)]; }
  // In kernels: forward (and again), both gradients and updates.
  double busy_s() const {
    return seconds(Activity::Forward) + seconds(Activity::Recompute) + seconds(Activity::InputGrad) +
           seconds(Activity::WeightGrad) + seconds(Activity::Step);
  }
  // Waiting for messages and sums, and handing them over.
  double exposed_comm_s() const {
    return seconds(Activity::Send) + seconds(Activity::Receive) + seconds(Activity::Reduce);
  }

 private:
  std::vector<Span> spans_;
  LeftOut left_out_;
  std::array<double, static_cast<size_t>(Activity::kCount)> seconds_{};
};

}  // namespace millrace::runtime
