#include "millrace/runtime/prefix_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/data/dataset.h"

namespace millrace::runtime {
namespace {

constexpr double kGiB = 1 << 30;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

PrefixCaches::PrefixCaches(const job::Job& job, int64_t num_samples, std::function<void(const std::string&)> on_note,
                           bool always, const std::string& ticket)
    : num_samples_(num_samples), always_(always) {
  if (data::changes_with_epoch(job)) {
    fail_input(
        "elastic.cache is on and every epoch sees other crops or mirrors of the pictures, of which nothing can be "
        "kept; "
        "write data.train_transform.kind: resize and data.train_transform.mirror: 0, or elastic.cache: off");
  }
  cache::CacheOptions options;
  options.num_samples = num_samples;
  options.memory_bytes = static_cast<int64_t>(job.elastic.cache_gib * kGiB);
  options.disk_bytes = static_cast<int64_t>(job.elastic.cache_disk_gib * kGiB);
  options.directory = job.elastic.cache_dir;
  if (options.directory.empty()) options.directory = std::filesystem::temp_directory_path();
  const bool is_wide = job.precision == job::Precision::Fp32 || job.precision == job::Precision::Tf32;
  options.storage = job.elastic.cache_half && is_wide ? cache::Storage::Half : cache::Storage::AsGiven;
  budget_bytes_ = options.memory_bytes + options.disk_bytes;
  store_ = ticket.empty() ? std::make_shared<cache::ActivationCache>(options, std::move(on_note))
                          : std::make_shared<cache::ActivationCache>(ticket, std::move(on_note));
}

std::shared_ptr<const PrefixCache> PrefixCaches::next(int frozen, int64_t since) {
  if (frozen == 0) return nullptr;
  auto next = std::make_shared<PrefixCache>();
  next->cache = store_;
  next->num_samples = num_samples_;
  next->account = account_;
  next->budget_bytes = budget_bytes_;
  next->always = always_;
  next->made = {frozen, static_cast<uint64_t>(since)};
  // What is deeper than what stands still now is of weights that will change.
  if (!made_.empty() && made_.back().layers < frozen) {
    next->known = made_.back();
    made_.pop_back();
  }
  next->stale = std::exchange(made_, {});
  if (next->known) made_.push_back(*next->known);
  made_.push_back(next->made);
  return next;
}

void PrefixCaches::settle(std::optional<double> lost_s, double train_s) {
  *account_ = {lost_s.value_or(account_->lost_s), account_->run_s + train_s};
}

int PrefixCaches::kept_layers(int64_t more_samples) const {
  if (made_.empty()) return 0;
  return store_->num_entries(made_.back()) + more_samples >= num_samples_ ? made_.back().layers : 0;
}

std::string PrefixPath::refusal(const PrefixCache& cache, const Session& session) {
  const std::optional<graph::PrefixEnd> end = session.prefix_end(cache.made.layers);
  if (!end) {
    return fmt::format(
        "not cached: the {} frozen layers end in more than one value, or in a stage that is computed again before its "
        "backward; write memory.recompute: block, or off",
        cache.made.layers);
  }
  // Of a part of the samples it would hardly ever have a whole batch.
  constexpr int64_t kPage = cache::SlotFile::kPage;
  const auto row_pages = (static_cast<int64_t>(session.prefix_row_bytes(*end)) + kPage - 1) / kPage;
  const int64_t bytes = row_pages * kPage * cache.num_samples;
  if (bytes <= cache.budget_bytes) return {};
  return fmt::format(
      "not cached: {} samples take {:.3g} GiB and there are {:.3g}; write a larger elastic.cache_gib or "
      "elastic.cache_disk_gib",
      cache.num_samples, static_cast<double>(bytes) / kGiB, static_cast<double>(cache.budget_bytes) / kGiB);
}

std::unique_ptr<PrefixPath> PrefixPath::make(std::shared_ptr<const PrefixCache> cache, Session& session,
                                             backend::Backend& backend, bool loads) {
  if (!cache || !loads || !refusal(*cache, session).empty()) return nullptr;
  return std::unique_ptr<PrefixPath>(new PrefixPath(std::move(cache), session, backend));
}

PrefixPath::PrefixPath(std::shared_ptr<const PrefixCache> cache, Session& session, backend::Backend& backend)
    : cache_(std::move(cache)), session_(session), backend_(backend), made_(*session.prefix_end(cache_->made.layers)) {
  if (cache_->known) known_ = session.prefix_end(cache_->known->layers);
  const size_t made_bytes = session.prefix_row_bytes(made_);
  const size_t known_bytes = known_ ? session.prefix_row_bytes(*known_) : 0;
  if (backend.on_host()) {
    rows_.resize(made_bytes * static_cast<size_t>(session.graph().batch()));
  } else {
    keeper_ = std::make_unique<PrefixKeeper>(
        backend, made_bytes, session.graph().batch(),
        [this](int64_t sample, std::span<const std::byte> row) { cache_->cache->put(cache_->made, sample, 0, row); });
  }
  shortcut_.row_bytes = std::max(made_bytes, known_bytes);
  shortcut_.with_features = made_.reads_input;
  shortcut_.which = [this](int64_t epoch) {
    if (!pays_.load(std::memory_order_relaxed) && !cache_->always) return 0;
    if (cache_->has_all(cache_->made)) return made_.layers;
    return epoch == known_epoch_.load(std::memory_order_relaxed) ? known_->layers : 0;
  };
  shortcut_.bytes_of_row = [this, made_bytes, known_bytes](int which) {
    return which == made_.layers ? made_bytes : known_bytes;
  };
  shortcut_.fetch = [this](int which, int64_t sample, int64_t, std::span<std::byte> row) {
    return cache_->cache->get(which == made_.layers ? cache_->made : *cache_->known, sample, 0, row);
  };
}

void PrefixPath::begin(int64_t steps, int64_t epoch, int64_t last_epoch) {
  for (const cache::FrozenPrefix& old : cache_->stale) cache_->cache->retire(old);
  cache_->cache->open_depth(cache_->made, static_cast<int64_t>(session_.prefix_row_bytes(made_)));
  is_first_ = true;
  last_epoch_ = last_epoch;
  gate_.begin(cache_->account->run_s, cache_->account->lost_s, steps);
  known_epoch_ = known_ && cache_->has_all(*cache_->known) ? epoch : -1;
}

void PrefixPath::take(const data::Batch& batch, double waited_s) {
  const auto samples = static_cast<int64_t>(batch.samples.size());
  const bool is_first = std::exchange(is_first_, false);
  if (batch.shortcut > 0) gate_.fetched((is_first ? 0 : waited_s) + put_s_, samples);
  put_s_ = 0;
  const double before_s = std::exchange(taken_at_s_, now_s());
  if (!is_first) gate_.stepped(taken_at_s_ - before_s);
  pays_.store(gate_.decide(), std::memory_order_relaxed);
  stores_ = cache_->always || (gate_.stores() && batch.epoch < last_epoch_);
}

void PrefixPath::put(const data::Batch& batch, size_t row, int slot) {
  const double begin = now_s();
  const graph::PrefixEnd& end = batch.shortcut == made_.layers ? made_ : *known_;
  session_.put_prefix(end, slot, batch.shortened.data() + row * batch.shortened_bytes);
  put_s_ += now_s() - begin;
}

void PrefixPath::forward(const data::Batch& batch, std::span<const int64_t> samples, const Session::Place& place,
                         const backend::StepContext& context) {
  const auto count = static_cast<int64_t>(samples.size());
  if (batch.shortcut == made_.layers) {
    rows_fetched_ += count;
    return session_.forward(place, context, &made_, nullptr, [] {});
  }
  const graph::PrefixEnd* known = batch.shortcut > 0 ? &*known_ : nullptr;
  (known ? rows_fetched_ : rows_computed_) += count;
  // A device runs its tasks later than they are called: it is waited for now and then, to see what computing takes.
  const int64_t number = known ? -1 : num_computed_++;
  const bool measures = backend_.on_host() || (!known && (number < kMeasureFirst || number % kMeasureEvery == 0));
  if (measures) backend_.wait();
  const double begin = now_s();
  session_.forward(place, context, known, &made_, [&] {
    if (measures) backend_.wait();
    if (measures && !known) gate_.computed(now_s() - begin, count);
    if (stores_) gate_.stored(store(samples, place.slot));
  });
}

// Returns the seconds that computing was held up.
double PrefixPath::store(std::span<const int64_t> samples, int slot) {
  if (keeper_) return keeper_->keep(session_.prefix_memory(made_, slot), samples);
  const double begin = now_s();
  session_.take_prefix(made_, slot, rows_.data());
  const size_t bytes = rows_.size() / static_cast<size_t>(session_.graph().batch());
  for (size_t i = 0; i < samples.size(); ++i) {
    cache_->cache->put(cache_->made, samples[i], 0, std::span<const std::byte>(rows_).subspan(i * bytes, bytes));
  }
  return now_s() - begin;
}

}  // namespace millrace::runtime
