#include "millrace/state/checkpoint_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"

namespace millrace::state {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-", kBest = "best-step-";
// Names that begin so are never of a checkpoint.
constexpr std::string_view kHalfWritten = ".step-", kHalfBest = ".best-", kHalfRemoved = ".removed-";

std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> number_after(std::string_view start, std::string_view name) {
  if (!name.starts_with(start)) return {};
  name.remove_prefix(start.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = !name.empty() && name.front() != '-' && end == name.data() + name.size();
  return whole && error == std::errc() ? std::optional(number) : std::nullopt;
}

// The directories <start><number>, the largest number last.
std::vector<fs::path> numbered(const fs::path& directory, std::string_view start) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const auto number = number_after(start, entry->path().filename().string());
    std::error_code ignored;
    if (number && entry->symlink_status(ignored).type() == fs::file_type::directory) {
      found.emplace_back(*number, entry->path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

void make_empty_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (!error) fs::remove_all(path, error);
  if (!error) fs::create_directory(path, error);
  if (error) fail_run("{}: cannot be created: {}", path.string(), error.message());
}

// First loses the name of a checkpoint: what is half removed must not look like one.
void remove_checkpoint(const fs::path& path) noexcept {
  try {
    std::error_code error;
    const fs::path hidden = path.parent_path() / (std::string(kHalfRemoved) + path.filename().string());
    fs::remove_all(hidden, error);
    fs::rename(path, hidden, error);
    if (!error) fs::remove_all(hidden, error);
  } catch (const std::exception&) {
    // Out of memory for a path: it stays, and is removed another time.
  }
}

// Gives a finished directory its name. One that has it already is exchanged for it, so that there is always one.
void put_in_place(const fs::path& hidden, const fs::path& place) {
  flush_directory(hidden);
  std::error_code error;
  const bool exchanged = ::renameat2(AT_FDCWD, hidden.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0;
  if (!exchanged) {
    if (fs::exists(fs::symlink_status(place, error))) remove_checkpoint(place);
    fs::rename(hidden, place, error);
    if (error) fail_run("{}: cannot be put in place: {}", place.string(), error.message());
  }
  const int flushed = flush_directory(place.parent_path());
  if (flushed != 0) fail_run("{}: cannot be flushed to the disk: {}", place.string(), std::strerror(flushed));
  flush_directory(place.parent_path().parent_path());  // where the directory of all checkpoints may be new
  if (exchanged) fs::remove_all(hidden, error);
}

void copy_to_disk(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  if (error) fail_run("{}: cannot be copied from {}: {}", to.string(), from.string(), error.message());
  const int file = ::open(to.c_str(), O_RDONLY | O_CLOEXEC);
  const int flushed = file >= 0 && ::fsync(file) == 0 ? 0 : errno;
  if (file >= 0) ::close(file);
  if (flushed != 0) fail_run("{}: cannot be written: {}", to.string(), std::strerror(flushed));
}

// The same files under another directory.
void link_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::directory_iterator entry(from, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (entry->symlink_status(error).type() != fs::file_type::regular) continue;
    const fs::path file = to / entry->path().filename();
    // Not every file system has links.
    if (::link(entry->path().c_str(), file.c_str()) != 0) copy_to_disk(entry->path(), file);
  }
  if (error) fail_run("{}: cannot be read: {}", from.string(), error.message());
}

}  // namespace

std::optional<int64_t> step_of(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  const auto step = number_after(kStep, name);
  return step ? step : number_after(kBest, name);
}

std::vector<fs::path> CheckpointStore::list() const { return numbered(directory_, kStep); }

std::optional<fs::path> CheckpointStore::best() const {
  const std::vector<fs::path> found = numbered(directory_, kBest);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

std::vector<fs::path> CheckpointStore::all() const {
  std::vector<fs::path> all = list();
  if (auto kept = best()) all.push_back(std::move(*kept));
  return all;
}

fs::path CheckpointStore::path(int64_t step) const { return directory_ / step_name(step); }

fs::path CheckpointStore::pending(int64_t step) const { return directory_ / fmt::format(".{}.part", step_name(step)); }

fs::path CheckpointStore::begin(int64_t step) {
  const fs::path path = pending(step);
  make_empty_directory(path);
  return path;
}

fs::path CheckpointStore::finish(int64_t step) {
  const fs::path hidden = pending(step), place = directory_ / step_name(step);
  std::error_code error;
  if (!fs::exists(hidden / "manifest.json", error)) fail_run("{}: has no manifest.json yet", hidden.string());
  put_in_place(hidden, place);
  return place;
}

void CheckpointStore::keep_as_best(const fs::path& checkpoint) {
  const auto step = step_of(checkpoint);
  if (!step) fail_run("{}: is not named as a checkpoint", checkpoint.string());
  const std::string name = "best-" + step_name(*step);
  const fs::path hidden = directory_ / fmt::format(".{}.part", name), place = directory_ / name;
  make_empty_directory(hidden);
  try {
    link_files(checkpoint, hidden);
    put_in_place(hidden, place);
  } catch (const std::runtime_error&) {
    std::error_code ignored;
    fs::remove_all(hidden, ignored);
    throw;
  }
  for (const fs::path& former : numbered(directory_, kBest)) {
    if (former != place) remove_checkpoint(former);
  }
}

void CheckpointStore::give_up(int64_t step) noexcept {
  try {
    std::error_code ignored;
    fs::remove_all(pending(step), ignored);
  } catch (const std::exception&) {
    // It is hidden, and removed by the next remove_leftovers().
  }
}

void CheckpointStore::remove(const fs::path& checkpoint) noexcept { remove_checkpoint(checkpoint); }

void CheckpointStore::remove_old(int keep) noexcept {
  try {
    const std::vector<fs::path> all = list();
    const size_t kept = static_cast<size_t>(std::max(keep, 0));
    for (size_t i = 0; i + kept < all.size(); ++i) remove_checkpoint(all[i]);
  } catch (const std::exception&) {
    // They stay until the next time.
  }
}

void CheckpointStore::remove_leftovers() noexcept {
  try {
    std::vector<fs::path> leftovers;
    std::error_code error;
    for (fs::directory_iterator entry(directory_, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      const bool half = (name.starts_with(kHalfWritten) || name.starts_with(kHalfBest)) && name.ends_with(".part");
      if (half || name.starts_with(kHalfRemoved)) leftovers.push_back(entry->path());
    }
    for (const fs::path& path : leftovers) fs::remove_all(path, error);
    const auto kept = best();  // a new best is in place before the former one goes
    for (const fs::path& path : numbered(directory_, kBest)) {
      if (path != *kept) remove_checkpoint(path);
    }
  } catch (const std::exception&) {
    // They are hidden, and stay until the next time.
  }
}

}  // namespace millrace::state
