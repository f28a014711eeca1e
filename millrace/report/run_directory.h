// The directory a run writes to. It holds one run: the resolved job, metrics, weights, trace and summary.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace millrace::report {

// Throws std::invalid_argument with one line if a run cannot go to `path`: it is no directory, cannot be written,
// or already holds a run and `overwrite` is false. Leaves nothing behind, so it can be asked before any work is
// done.
void check_run_directory(const std::filesystem::path& path, bool overwrite);

// The same for a file that is to be written later, named by the option `option`. Leaves nothing behind.
void check_file(const std::filesystem::path& path, std::string_view option);

// Replaces the file's content in one piece: whoever reads it sees the old text or the new, never half of it.
void write_file(const std::filesystem::path& path, std::string_view text);

class RunDirectory {
 public:
  // Creates `path` after check_run_directory(). With `overwrite` the files of the run that was there are removed
  // first, and only those. On failure nothing is left behind.
  static RunDirectory create(const std::filesystem::path& path, bool overwrite = false);

  // The directory of a run that goes on. Throws std::invalid_argument if it holds none.
  static RunDirectory open(const std::filesystem::path& path);

  // `parent`/<job_name>-<n> with the first n from 1 that is free.
  static std::filesystem::path next_numbered(std::string_view job_name, const std::filesystem::path& parent = "runs");
  // Creates it.
  static RunDirectory create_numbered(std::string_view job_name, const std::filesystem::path& parent = "runs");

  const std::filesystem::path& path() const { return path_; }

  void write(std::string_view file, std::string_view text) const { write_file(path_ / file, text); }

 private:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
};

// metrics.jsonl: one JSON object a line, written through at once so that a run can be watched and a crash loses
// nothing.
class MetricsLog {
 public:
  // Where a run begins: what its directory holds of later steps is dropped.
  struct Position {
    int64_t step = 0;
    double epoch = 0;
    bool evaluation_due = false;  // there, so that one which was made before is made again
  };
  explicit MetricsLog(const RunDirectory& directory) : MetricsLog(directory, Position{}) {}
  MetricsLog(const RunDirectory& directory, const Position& first);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Empty, or why the record could not be written: none is ever left in half.
  std::string append(const nlohmann::ordered_json& record);

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace millrace::report
