#include "millrace/cache/cache_gate.h"

#include <fmt/format.h>

namespace millrace::cache {
namespace {

constexpr double kOpenBelow = 0.9;      // of the time of computing
constexpr double kMostLost = 0.015;     // of the run
constexpr double kReopenLost = 0.0075;  // of the run

std::string compare(const CacheTimes& times) {
  return fmt::format("fetching a sample takes {:.3f} ms, computing it {:.3f} ms", times.fetch_s * 1e3,
                     times.forward_s * 1e3);
}

bool has_lost_too_much(const CacheTimes& times, bool in_use) {
  return times.lost_s > 0 && times.lost_s >= times.run_s * (in_use ? kMostLost : kReopenLost);
}

}  // namespace

bool cache_pays(const CacheTimes& times, bool in_use) {
  if (times.forward_s <= 0 || has_lost_too_much(times, in_use)) return false;
  return times.fetch_s <= times.forward_s * (in_use ? 1 : kOpenBelow);  // 0: to be measured
}

CacheVerdict judge_cache(const CacheTimes& times, bool in_use) {
  const bool pays = cache_pays(times, in_use);
  if (times.forward_s <= 0) return {pays, "not cached: computing has not been measured"};
  if (has_lost_too_much(times, in_use)) {
    return {pays, fmt::format("not cached: caching has cost {:.3g} s more than it saved{}", times.lost_s,
                              times.run_s > 0 ? fmt::format(", {:.1f}% of the run", 100 * times.lost_s / times.run_s)
                                              : std::string())};
  }
  if (times.fetch_s <= 0) return {pays, "cached: to be measured"};
  return {pays, (pays ? "cached: " : "not cached: ") + compare(times)};
}

void CacheGate::computed(double seconds, int64_t samples) {
  if (samples > 0) forward_s_.add(seconds / static_cast<double>(samples));
}

void CacheGate::fetched(double seconds, int64_t samples) {
  if (samples > 0) fetch_s_.add(seconds / static_cast<double>(samples));
  lost_s_ += seconds - forward_s_.median() * static_cast<double>(samples);
}

void CacheGate::deepened() {
  fetch_s_ = {};
  forward_s_ = {};
  in_use_ = false;
  refused_ = 0;
}

bool CacheGate::stores() const {
  return in_use_ || (forward_s_.empty() && !has_lost_too_much(times(), /*in_use=*/true));
}

bool CacheGate::decide() {
  in_use_ = cache_pays(times(), in_use_);
  refused_ = in_use_ ? 0 : refused_ + 1;
  const bool tries = !in_use_ && refused_ % kTryEvery == 0 && lost_s() < kReopenLost * run_s() && !forward_s_.empty();
  return in_use_ || tries;
}

}  // namespace millrace::cache
