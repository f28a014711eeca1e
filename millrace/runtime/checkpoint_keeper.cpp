#include "millrace/runtime/checkpoint_keeper.h"

#include <cmath>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"

namespace millrace::runtime {
namespace {

// How it was run, for people.
std::string in_words(const RunFacts& facts) {
  const schedule::Pipeline& pipeline = facts.plan.pipeline;
  std::string stages;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    stages += fmt::format("{}{}", s > 0 ? "|" : "", pipeline.num_replicas(s));
  }
  return fmt::format("{}, {} worker{}, replicas of stages {}", job::find_field("parallel.mode")->write(facts.job),
                     pipeline.num_workers, pipeline.num_workers == 1 ? "" : "s", stages);
}

const char* judged_by(job::Best best) { return best == job::Best::Loss ? "loss" : "top1"; }

}  // namespace

CheckpointKeeper::CheckpointKeeper(const RunFacts& facts, const Observer& observer, std::vector<int> savers)
    : facts_(facts),
      observer_(observer),
      savers_(std::move(savers)),
      store_(observer.checkpoints),
      last_begin_(Clock::now()) {
  if (!keeps()) return;
  store_.remove_leftovers();
  // Of a run that goes on; one that goes on elsewhere has none yet.
  if (facts.first_step > 0 && std::filesystem::exists(store_.path(facts.first_step))) newest_ = facts.first_step;
  if (const auto best = store_.best(); best && facts.job.checkpoint.best != job::Best::Off) {
    best_ = judged_figure(state::read_manifest(*best));
  }
}

CheckpointKeeper::~CheckpointKeeper() {
  if (!saving_) return;  // it ends in the middle of one
  if (saving_->finishing.valid()) saving_->finishing.wait();
  store_.give_up(saving_->manifest.step);
}

bool CheckpointKeeper::due_by_time() const {
  const job::Period& every = facts_.job.checkpoint.every;
  if (!keeps() || saving_ || every.unit != job::Period::Unit::Minutes) return false;
  return Clock::now() - last_begin_ >= std::chrono::duration<double>(every.count * 60);
}

bool CheckpointKeeper::begin(int64_t step, int64_t samples, bool is_best, bool evaluation_due) {
  // One that was saved before its evaluation is written again with its figures, if those make it the best.
  if (!keeps() || (step == newest_ && !is_best)) return false;
  last_begin_ = Clock::now();
  if (saving_) {
    fail(step, fmt::format("that of step {} is still being written", saving_->manifest.step));
    return false;
  }
  try {
    store_.begin(step);
  } catch (const std::exception& error) {
    fail(step, error.what());
    return false;
  }
  Saving saving;
  saving.is_best = is_best;
  saving.waiting.insert(savers_.begin(), savers_.end());
  saving.manifest.step = step;
  saving.manifest.samples = samples;
  saving.manifest.since = facts_.calendar.since;
  saving.manifest.epoch = facts_.calendar.epoch_at(step);
  saving.manifest.train_samples = facts_.train_data->size();
  saving.manifest.plan = in_words(facts_);
  saving.manifest.figures = figures_;
  saving.manifest.freezing = observer_.freezing();
  saving.manifest.evaluation_due = evaluation_due;
  saving_ = std::move(saving);
  return true;
}

void CheckpointKeeper::take(const comm::Event& saved) {
  if (!saving_ || saved.number != saving_->manifest.step) return;
  saving_->waiting.erase(saved.part);
  if (saved.failure[0] != '\0' && saving_->failure.empty()) saving_->failure = saved.failure.data();
  if (saved.values[0] > 0) {
    saving_->manifest.loss_scale.assign(saved.values.begin(), saved.values.begin() + 3);
  }
  if (!saving_->waiting.empty()) return;
  // A slow disk must not keep those who wait for grants.
  saving_->finishing = std::async(std::launch::async, [this, saving = &*saving_] {
    try {
      return finish(*saving);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  });
}

std::string CheckpointKeeper::finish(const Saving& saving) {
  const int64_t step = saving.manifest.step;
  if (!saving.failure.empty()) return saving.failure;
  state::Manifest manifest = saving.manifest;
  for (int stage = 0; stage < facts_.plan.pipeline.num_stages(); ++stage) {
    const std::vector<state::Shard> shards = state::take_shard_list(store_.pending(step), stage);
    manifest.shards.insert(manifest.shards.end(), shards.begin(), shards.end());
  }
  state::write_manifest(store_.pending(step), std::move(manifest), facts_.job_text);
  const std::filesystem::path finished = store_.finish(step);
  if (saving.is_best) store_.keep_as_best(finished);
  store_.remove_old(facts_.job.checkpoint.keep);
  return {};
}

void CheckpointKeeper::look_after() {
  if (!saving_ || !saving_->finishing.valid()) return;
  if (saving_->finishing.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  const std::string failure = saving_->finishing.get();
  const Saving saving = std::move(*saving_);
  saving_.reset();
  if (!failure.empty()) {
    store_.give_up(saving.manifest.step);
    return fail(saving.manifest.step, failure);
  }
  newest_ = saving.manifest.step;
  if (saving.is_best) best_ = judged_figure(saving.manifest);
}

std::optional<state::Manifest> CheckpointKeeper::newest_before(int64_t step) const {
  if (!keeps()) return std::nullopt;
  const std::vector<std::filesystem::path> all = store_.list();
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    if (state::step_of(*path).value_or(step) < step) return state::read_manifest(*path);
  }
  return std::nullopt;
}

void CheckpointKeeper::fail(int64_t step, const std::string& why) {
  failures_.push_back(fmt::format("step {}: {}", step, why));
  observer_.on_note(fmt::format("the checkpoint of step {} is left out: {}; training goes on", step, why));
}

bool CheckpointKeeper::take_evaluation(const Metrics& metrics) {
  if (metrics.rows == 0) return false;
  figures_ = {{"loss", metrics.loss()}, {"top1", metrics.top1 / metrics.rows}};
  const job::Best by = facts_.job.checkpoint.best;
  if (by == job::Best::Off || !keeps()) return false;
  const double figure = figures_.at(judged_by(by));
  if (!std::isfinite(figure)) return false;
  const std::optional<double> best = saving_ && saving_->is_best ? judged_figure(saving_->manifest) : best_;
  return !best || (by == job::Best::Loss ? figure < *best : figure > *best);
}

std::optional<double> CheckpointKeeper::judged_figure(const state::Manifest& manifest) const {
  const auto found = manifest.figures.find(judged_by(facts_.job.checkpoint.best));
  return found == manifest.figures.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace millrace::runtime
