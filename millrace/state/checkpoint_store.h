// The checkpoints of a run: which there are, how one more comes in and old ones go. One process at a time writes here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/state/checkpoint.h"

namespace millrace::state {

class CheckpointStore {
 public:
  // `directory` need not exist before the first checkpoint.
  explicit CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  const std::filesystem::path& directory() const { return directory_; }

  // step-<n>, the newest last; best-step-<n> is not among them. Links are left alone.
  std::vector<std::filesystem::path> list() const;
  std::optional<std::filesystem::path> best() const;
  std::vector<std::filesystem::path> all() const;  // the best last

  // Where the checkpoint of a step lies, and where it is while it is written: the same on every process.
  std::filesystem::path path(int64_t step) const;
  std::filesystem::path pending(int64_t step) const;

  // An empty directory to write a checkpoint into; one of the same name that a process left behind is removed first.
  // Throws std::runtime_error with one line.
  std::filesystem::path begin(int64_t step);
  // Gives it its name (replacing a checkpoint of that step), flushed to the disk, so that it is there whole or not.
  std::filesystem::path finish(int64_t step);
  // The same files once more as the best so far, kept apart; the one that was best before is removed.
  void keep_as_best(const std::filesystem::path& checkpoint);
  void give_up(int64_t step) noexcept;  // removes what begin() made

  void remove(const std::filesystem::path& checkpoint) noexcept;
  // All but the newest `keep`.
  void remove_old(int keep) noexcept;
  // What processes that were killed left behind: half-written and half-removed checkpoints.
  void remove_leftovers() noexcept;

 private:
  std::filesystem::path directory_;
};

// Of step-<n> and best-step-<n>, by the name alone.
std::optional<int64_t> step_of(const std::filesystem::path& checkpoint);

// Where to go on from: a checkpoint's directory itself, or the newest of a run's directory (<run>, or
// <run>/checkpoints). All its bytes are verified. Throws std::invalid_argument with one line if there is none. With
// `fallback` damaged ones are passed over, newest first, the best one in its turn, each named by `on_damage`; without
// it a damaged one throws, naming the file, and the newest good one before it, if any.
struct Chosen {
  std::filesystem::path directory;
  Manifest manifest;
};
Chosen choose_checkpoint(const std::filesystem::path& run_or_checkpoint, bool fallback,
                         const std::function<void(const std::string&)>& on_damage);

}  // namespace millrace::state
