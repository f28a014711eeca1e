#include "cli/resume.h"

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/reader.h"
#include "millrace/plan/plan_file.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

// What makes it another training: other tensors, other data, other random numbers.
bool must_stay(const std::string& key) {
  if (key.starts_with("model.")) return key != "model.init" && key != "model.dropout";
  static const std::vector<std::string> keys = {
      "batch",      "seed",          "optimizer.kind",  "data.kind",         "data.train",      "data.train_samples",
      "data.noise", "data.on_error", "data.doc_stride", "data.max_question", "data.token_bytes"};
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Says little, and changes no number.
bool is_silent(const std::string& key) {
  return key == "name" || key.starts_with("checkpoint.") || key == "model.init";
}

std::vector<std::string> compare(const job::Job& saved, const job::Job& job, const fs::path& checkpoint) {
  std::vector<std::string> notes;
  for (const job::Field& field : job::fields()) {
    const std::string was = field.write(saved), is = field.write(job);
    if (was == is || is_silent(field.key)) continue;
    if (must_stay(field.key)) {
      fail_input(
          "{} was made with {} {}, not {}; leave it as it was, or begin a new run from its weights: millrace "
          "checkpoint export, then model.init",
          checkpoint.string(), field.key, was.empty() ? "empty" : was, is.empty() ? "empty" : is);
    }
    notes.push_back(
        fmt::format("{} was {}, is now {}", field.key, was.empty() ? "empty" : was, is.empty() ? "empty" : is));
  }
  return notes;
}

// runs/a/checkpoints/step-00000500 belongs to runs/a.
fs::path run_of(const fs::path& checkpoint) {
  const fs::path folder = fs::weakly_canonical(checkpoint).parent_path();
  if (folder.filename() != "checkpoints" || !fs::exists(folder.parent_path() / "job.yaml")) return {};
  const fs::path shown = checkpoint.parent_path().parent_path();
  return shown.empty() ? "." : shown;
}

std::vector<fs::path> later_checkpoints(const Resumed& resumed) {
  std::vector<fs::path> all = state::CheckpointStore(resumed.checkpoint.directory.parent_path()).list();
  std::erase_if(
      all, [&](const fs::path& path) { return state::step_of(path).value_or(0) <= resumed.checkpoint.manifest.step; });
  return all;
}

}  // namespace

Resumed resume(const ResumeArguments& arguments, const JobArguments& from) {
  Resumed resumed;
  resumed.checkpoint = state::choose_checkpoint(arguments.from, arguments.fallback,
                                                [&](const std::string& damage) { resumed.notes.push_back(damage); });
  const auto& [directory, manifest] = resumed.checkpoint;
  const std::string text = state::read_job(directory, manifest);
  const std::string name = (directory / "job.yaml").string();
  std::vector<std::string> settings{"model.init="};  // the file it began with may be gone
  if (!from.plan.empty()) {
    const std::vector<std::string> planned = plan::read_plan_settings(from.plan);
    settings.insert(settings.end(), planned.begin(), planned.end());
  }
  settings.insert(settings.end(), from.sets.begin(), from.sets.end());
  resumed.job = from.path.empty() ? job::parse_job(text, name, settings) : from.read();
  resumed.job.model.init.clear();
  const std::vector<std::string> changes = compare(job::parse_job(text, name, {"model.init="}), resumed.job, directory);
  resumed.notes.insert(resumed.notes.end(), changes.begin(), changes.end());
  resumed.run = run_of(directory);
  return resumed;
}

void check_later_checkpoints(const Resumed& resumed, bool overwrite) {
  for (const fs::path& later : later_checkpoints(resumed)) {
    if (overwrite || !state::verify(later).empty()) continue;
    fail_input("{} is newer than {}; write --overwrite to drop it, or --out for another run", later.string(),
               resumed.checkpoint.directory.filename().string());
  }
}

void set_aside_later_checkpoints(const Resumed& resumed) {
  for (const fs::path& later : later_checkpoints(resumed)) {
    if (state::verify(later).empty()) {
      state::CheckpointStore(later.parent_path()).remove(later);
    } else {
      fs::rename(later, later.parent_path() / ("damaged-" + later.filename().string()));
    }
  }
}

}  // namespace millrace::cli
