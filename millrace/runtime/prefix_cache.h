// What frozen layers make of each sample, kept from one epoch to the next. A batch whose samples are all known begins
// behind those layers; one in which any is not begins with its features, and what it makes is kept.
//
// When more layers freeze, the cache deepens: during one pass over the data the old output is read, the new layers
// compute theirs from it, and each entry takes the place of the one it was made from.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/cache/activation_cache.h"
#include "millrace/cache/cache_gate.h"
#include "millrace/data/loader.h"
#include "millrace/job/job.h"
#include "millrace/runtime/prefix_keeper.h"
#include "millrace/runtime/session.h"

namespace millrace::runtime {

// What caching has cost beyond what it saved in the trainings of a run that have ended, and how long they took.
struct CacheAccount {
  double lost_s = 0, run_s = 0;
};

// Of one training; all its workers share it, and a cache that outlives it.
struct PrefixCache {
  std::shared_ptr<cache::ActivationCache> cache;
  int64_t num_samples = 0;
  std::optional<cache::FrozenPrefix> known = {};  // of the training before
  cache::FrozenPrefix made = {};                  // of the layers that stand still now
  std::vector<cache::FrozenPrefix> stale = {};    // needed no more

  std::shared_ptr<const CacheAccount> account = {};  // changes between trainings only
  int64_t budget_bytes = 0;
  bool always = false;  // whether or not it is measured to pay

  bool has_all(const cache::FrozenPrefix& prefix) const { return cache->num_entries(prefix) == num_samples; }
};

// The caches of a run's trainings, one after another: all of one store.
class PrefixCaches {
 public:
  // Refuses data that looks different in every epoch. `on_note`: for the user, from any thread.
  // `always`: fetched even where computing would be faster, so that what happens does not depend on the clock.
  // `ticket`: of a process of this host that has the store already; empty: it is made here.
  PrefixCaches(const job::Job& job, int64_t num_samples, std::function<void(const std::string&)> on_note,
               bool always = false, const std::string& ticket = {});
  const std::string& ticket() const { return store_->ticket(); }

  // For a training with so many frozen layers, as they are from step `since` on; null: nothing is frozen.
  std::shared_ptr<const PrefixCache> next(int frozen, int64_t since);
  // Layers whose output is kept of every sample, or will be once so many more were trained on. Before next().
  int kept_layers(int64_t more_samples) const;
  // A training has ended, after so many seconds; the run has lost so much by then, where anything could be kept.
  void settle(std::optional<double> lost_s, double train_s);
  cache::CacheCounts counts() const { return store_->counts(); }

 private:
  std::shared_ptr<cache::ActivationCache> store_;
  std::shared_ptr<CacheAccount> account_ = std::make_shared<CacheAccount>();
  int64_t num_samples_ = 0, budget_bytes_ = 0;
  bool always_ = false;
  std::vector<cache::FrozenPrefix> made_;  // that may be open
};

// A worker's way through it: what its first stage is given instead of features, and what it keeps. The loader's threads
// use the shortcut, the worker everything else.
class PrefixPath {
 public:
  // Why a stage that reads the data has none, in words; empty: it has one.
  static std::string refusal(const PrefixCache& cache, const Session& session);
  // Nothing where there is no cache, the stage does not read the data, or it is refused.
  static std::unique_ptr<PrefixPath> make(std::shared_ptr<const PrefixCache> cache, Session& session,
                                          backend::Backend& backend, bool loads);

  const data::Shortcut& shortcut() const { return shortcut_; }
  // When the training before has ended and before the loader begins: the steps that are left, the epoch of the first
  // batch, and that of the last one of the run, in which nothing is stored because nobody would fetch it.
  void begin(int64_t steps, int64_t epoch, int64_t last_epoch);

  // Once a batch, with the seconds that it was waited for.
  void take(const data::Batch& batch, double waited_s);
  // A micro-batch of it: its rows from `row` on are in the session.
  void put(const data::Batch& batch, size_t row, int slot);
  // Its forward; the first `count` rows are the samples.
  void forward(const data::Batch& batch, std::span<const int64_t> samples, const Session::Place& place,
               const backend::StepContext& context);

  // Returns when all that is to be kept is.
  void finish() {
    if (keeper_) keeper_->finish();
  }

  int64_t rows_fetched() const { return rows_fetched_; }
  int64_t rows_computed() const { return rows_computed_; }
  double lost_s() const { return gate_.lost_s(); }
  size_t device_bytes() const { return keeper_ ? keeper_->device_bytes() : 0; }
  // Whether fetching pays, and why; while nobody trains.
  std::string verdict() const { return gate_.verdict(); }

 private:
  PrefixPath(std::shared_ptr<const PrefixCache> cache, Session& session, backend::Backend& backend);
  double store(std::span<const int64_t> samples, int slot);

  const std::shared_ptr<const PrefixCache> cache_;
  Session& session_;
  backend::Backend& backend_;
  std::optional<graph::PrefixEnd> known_;
  graph::PrefixEnd made_;
  data::Shortcut shortcut_;
  std::vector<std::byte> rows_;           // of a micro-batch, where the host computes
  std::unique_ptr<PrefixKeeper> keeper_;  // where a device does
  std::atomic<int64_t> known_epoch_{-1};  // in which the older output is there for all samples
  int64_t last_epoch_ = 0;
  cache::CacheGate gate_;
  std::atomic<bool> pays_{true};
  bool stores_ = true;    // what the batch makes
  bool is_first_ = true;  // batch of a loader: whatever it loads, it is waited for
  double put_s_ = 0;
  double taken_at_s_ = 0;                                          // the last batch
  static constexpr int64_t kMeasureFirst = 9, kMeasureEvery = 16;  // batches, on a device
  int64_t num_computed_ = 0;
  int64_t rows_fetched_ = 0, rows_computed_ = 0;
};

}  // namespace millrace::runtime
