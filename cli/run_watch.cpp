#include "cli/run_watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "millrace/report/summary.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTailBytes = 65536;  // records are some 150 bytes

std::vector<fs::path> checkpoints_of(const fs::path& run) { return state::CheckpointStore(run / "checkpoints").all(); }

// Of the last record of a step. What ended the run may have cut the last line.
std::optional<int64_t> last_step_in(const fs::path& metrics) {
  std::ifstream in(metrics, std::ios::binary | std::ios::ate);
  if (!in) return std::nullopt;
  const int64_t bytes = in.tellg(), begin = std::max<int64_t>(0, bytes - kTailBytes);
  std::string tail(static_cast<size_t>(bytes - begin), '\0');
  in.seekg(begin);
  in.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  for (size_t end = tail.size(); end > 0;) {
    const size_t before = tail.rfind('\n', end - 1);
    const size_t start = before == std::string::npos ? 0 : before + 1;
    const auto record = nlohmann::json::parse(tail.substr(start, end - start), nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.contains("step") && record["step"].is_number_integer()) {
      return record["step"].get<int64_t>();
    }
    if (before == std::string::npos) break;
    end = before;
  }
  return std::nullopt;
}

}  // namespace

RunWatch::RunWatch(fs::path run, bool goes_on)
    : run_(std::move(run)), metrics_(run_ / "metrics.jsonl"), summary_(run_ / report::kLastFile) {
  if (goes_on) return;
  for (const fs::path& path : checkpoints_of(run_)) not_ours_.push_back({path, stamp_of(path)});
}

RunWatch::Stamp RunWatch::stamp_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_ino, status.st_size, status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec};
}

std::optional<int64_t> RunWatch::checkpoint() const {
  std::optional<int64_t> newest;
  for (const fs::path& path : checkpoints_of(run_)) {
    const auto is_this = [&](const Former& former) { return former.path == path && former.stamp == stamp_of(path); };
    if (std::any_of(not_ours_.begin(), not_ours_.end(), is_this)) continue;
    if (const auto step = state::step_of(path)) newest = std::max(newest.value_or(*step), *step);
  }
  return newest;
}

void RunWatch::begin_attempt(int64_t first_step) {
  first_step_ = first_step;
  first_checkpoint_ = checkpoint();
  at_start_ = last_ = stamp_of(metrics_);
  summary_at_start_ = stamp_of(summary_);
  lowest_bytes_ = at_start_.bytes;
  grew_ = false;
}

bool RunWatch::observe() {
  const Stamp now = stamp_of(metrics_);
  // Another file holds what was kept of the former one, which is no step made.
  const bool replaced = now.file != last_.file && last_.file != 0;
  const bool grew = !replaced && now.bytes > last_.bytes;
  lowest_bytes_ = replaced ? now.bytes : std::min(lowest_bytes_, now.bytes);
  grew_ |= now.bytes > lowest_bytes_;
  last_ = now;
  return grew;
}

bool RunWatch::made_progress() {
  observe();
  if (grew_ || checkpoint() > first_checkpoint_) return true;
  return last_step().value_or(-1) >= first_step_;  // steps are counted from 0, a checkpoint's number is that of steps
}

bool RunWatch::is_whole() const {
  const Stamp now = stamp_of(summary_);
  return now != Stamp() && now != summary_at_start_ && report::steps_of_whole(run_).has_value();
}

std::optional<int64_t> RunWatch::last_step() const {
  if (stamp_of(metrics_) == at_start_) return std::nullopt;
  const auto step = last_step_in(metrics_);
  const bool is_kept = step && *step < first_step_ && !grew_;  // from an attempt before
  return is_kept ? std::nullopt : step;
}

}  // namespace millrace::cli
