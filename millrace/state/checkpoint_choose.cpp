#include <algorithm>
#include <system_error>
#include <tuple>

#include "millrace/base/error.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::state {
namespace {

namespace fs = std::filesystem;

bool directory_exists(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool present(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// All checkpoints of a directory, the best one too, the newest first.
std::vector<fs::path> newest_first(const fs::path& directory) {
  std::vector<fs::path> all = CheckpointStore(directory).all();
  std::stable_sort(all.begin(), all.end(), [](const fs::path& a, const fs::path& b) {
    return std::tuple(step_of(a), a.filename()) > std::tuple(step_of(b), b.filename());  // "step" before "best"
  });
  return all;
}

// What `path` names, and then what may stand in for it.
std::vector<fs::path> candidates(const fs::path& path) {
  const bool named_as_one = step_of(path) && !directory_exists(path / "checkpoints");  // its manifest may be missing
  if (present(path / "manifest.json") || named_as_one) {
    std::vector<fs::path> all = {path};
    for (fs::path& other : newest_first(path.has_parent_path() ? path.parent_path() : ".")) {
      if (step_of(path) && step_of(other) < step_of(path)) all.push_back(std::move(other));
    }
    return all;
  }
  const std::vector<fs::path> of_run = newest_first(path / "checkpoints");
  return of_run.empty() ? newest_first(path) : of_run;
}

// "" if all is well.
std::string damage_of(const fs::path& checkpoint) {
  const std::vector<Damage> damages = verify(checkpoint);
  if (damages.empty()) return {};
  const std::string more = damages.size() == 1   ? ""
                           : damages.size() == 2 ? " (and 1 more file is damaged)"
                                                 : fmt::format(" (and {} more files are damaged)", damages.size() - 1);
  return fmt::format("{}: {} {}{}", checkpoint.string(), damages[0].file, damages[0].what, more);
}

// For the end of a line that refuses the first of `all`.
std::string instead(const std::vector<fs::path>& all) {
  for (size_t i = 1; i < all.size(); ++i) {
    if (!verify(all[i]).empty()) continue;
    return fmt::format("; {}: --resume {}, or write --fallback",
                       i == 1 ? "the one before it is good" : "the newest good one before it", all[i].string());
  }
  return all.size() == 1 ? "; there is none before it" : "; none before it is good";
}

}  // namespace

Chosen choose_checkpoint(const fs::path& run_or_checkpoint, bool fallback,
                         const std::function<void(const std::string&)>& on_damage) {
  const bool slash = !run_or_checkpoint.has_filename();  // "runs/a/"
  const fs::path path = slash ? run_or_checkpoint.parent_path() : run_or_checkpoint;
  if (!directory_exists(path)) {
    fail_input("{}: {}; name a run's directory or one of its checkpoints", path.string(),
               present(path) ? "is not a directory" : "no such directory");
  }
  const std::vector<fs::path> all = candidates(path);
  if (all.empty()) {
    fail_input("{}: holds no checkpoint; name a run's directory with {}, or one of its checkpoints", path.string(),
               "checkpoints/step-<n> in it");
  }
  for (const fs::path& checkpoint : all) {
    const std::string line = damage_of(checkpoint);
    if (line.empty()) return {checkpoint, read_manifest(checkpoint)};
    if (!fallback) fail_input("{}{}", line, instead(all));
    if (on_damage) on_damage(line);
  }
  fail_input(
      "{}: {}", path.string(),
      all.size() == 1 ? "its only checkpoint is damaged" : fmt::format("all {} checkpoints are damaged", all.size()));
}

}  // namespace millrace::state
