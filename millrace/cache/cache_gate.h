// Whether a cache pays: fetching a sample's entry must take less time than computing it. Decided from measured times
// alone, so that a run is never more than 2% slower than it would be without a cache: what caching has cost beyond what
// it saved is kept as an account, and closes the gate before it reaches that.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "millrace/cache/recent_times.h"

namespace millrace::cache {

struct CacheTimes {
  double fetch_s = 0;    // of one sample; 0: not known yet
  double forward_s = 0;  // of one sample through the frozen prefix; 0: not known yet
  double lost_s = 0;     // fetching and storing so far, less what was saved by it; below 0: a gain
  double run_s = 0;      // the whole run, from first to last step, as it would be without a cache
};

struct CacheVerdict {
  bool use = false;
  std::string why;  // one line
};

// Opens where fetching takes less than nine tenths of computing, and closes where it takes longer; in between it stays
// as it is. While fetching is not known, it is tried. An account that has reached 1.5% of the run closes it - what is
// on its way by then has to fit into 2% - until it is below half of that.
bool cache_pays(const CacheTimes& times, bool in_use);
// The same in words, for people.
CacheVerdict judge_cache(const CacheTimes& times, bool in_use);

// Collects the times of one worker. Not for several threads at once.
class CacheGate {
 public:
  // What the run has taken and lost before, and the steps that are left: its account goes on.
  void begin(double run_s, double lost_s, int64_t steps) {
    before_s_ = run_s;
    carried_s_ = lost_s;
    steps_ = steps;
  }
  // A step, with all that was measured of it. The first ones are slow, and an account that is held against too long a
  // run is closed too late: what counts is the least of the last few, without what was lost.
  void stepped(double seconds) { step_s_.add(seconds - (lost_s_ - std::exchange(lost_until_s_, lost_s_))); }

  // Seconds that training was held up: where loading runs ahead on threads of its own, a fetch costs what the worker
  // waits for it. `samples` of fetched: those that then were not computed.
  void computed(double seconds, int64_t samples);
  void fetched(double seconds, int64_t samples);
  void stored(double seconds) { lost_s_ += seconds; }

  // Another prefix: what was measured no longer holds, what was lost stays lost.
  void deepened();

  // Before each batch: whether it shall be fetched. While fetching does not pay, one batch in 64 is fetched all the
  // same, as far as the account allows, to see whether it would now.
  bool decide();

  // After decide(): whether what the batch makes shall be stored. It is while nothing is measured yet: a cache that
  // lacks its first batches is not full after an epoch.
  bool stores() const;

  double lost_s() const { return carried_s_ + lost_s_; }
  // How it stands, in words.
  std::string verdict() const { return judge_cache(times(), in_use_).why; }

 private:
  static constexpr int64_t kTryEvery = 64;

  double run_s() const { return before_s_ + step_s_.least() * static_cast<double>(steps_); }
  CacheTimes times() const { return {fetch_s_.median(), forward_s_.median(), lost_s(), run_s()}; }

  double before_s_ = 0, carried_s_ = 0;
  int64_t steps_ = 0;
  double lost_s_ = 0, lost_until_s_ = 0;
  RecentTimes fetch_s_, forward_s_, step_s_;
  bool in_use_ = false;
  int64_t refused_ = 0;  // batches in a row
};

}  // namespace millrace::cache
