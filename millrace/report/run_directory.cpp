#include "millrace/report/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"

namespace millrace::report {
namespace {

namespace fs = std::filesystem;

// The first two mark a directory as holding a run.
constexpr std::array kRunFiles = {"summary.json", "job.yaml",       "metrics.jsonl", "model.safetensors", "trace.json",
                                  "plan.json",    "restarts.jsonl", "elastic.json",  "elastic.svg"};
constexpr const char* kCheckpoints = "checkpoints";

// "runs/x/" and "runs/x" are one directory; the parts must be real names to be created one by one.
fs::path without_trailing_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

bool present(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

bool holds_run(const fs::path& path) { return present(path / kRunFiles[0]) || present(path / kRunFiles[1]); }

[[noreturn]] void fail_directory(const fs::path& path, const fs::path& part, const std::string& reason) {
  const std::string where = path == part ? "" : fmt::format("{} ", part.string());
  fail_input("output directory {}: {}{}; choose another with --out", path.string(), where, reason);
}

void require_directory(const fs::path& path, const fs::path& part) {
  std::error_code error;
  const fs::file_type type = fs::status(part, error).type();
  if (type == fs::file_type::none) fail_directory(path, part, fmt::format("cannot be reached: {}", error.message()));
  if (type != fs::file_type::directory) fail_directory(path, part, "is not a directory");
}

// mkdir for `path` and what is missing above it; takes back what it made if a part fails. False when `path` itself
// is there already.
bool make_directories(const fs::path& path) {
  std::vector<fs::path> missing;
  for (fs::path part = path; !part.empty() && !present(part); part = part.parent_path()) missing.push_back(part);
  for (auto part = missing.rbegin(); part != missing.rend(); ++part) {
    if (::mkdir(part->c_str(), 0777) == 0) continue;
    const int error = errno;
    if (error == EEXIST && *part != path) continue;  // another run makes the same parents
    if (error == EEXIST) return false;
    for (auto made = part; made != missing.rbegin(); --made) ::rmdir(std::prev(made)->c_str());
    fail_directory(path, *part, fmt::format("cannot be created: {}", std::strerror(error)));
  }
  return !missing.empty();
}

// By a run that was killed.
void remove_half_written(const fs::path& path) {
  for (const char* file : kRunFiles) PendingFile::remove_leftovers_of(path / file);
}

}  // namespace

void check_run_directory(const fs::path& wanted, bool overwrite) {
  if (wanted.empty()) fail_input("output directory: the name is empty; write --out DIR");
  const fs::path path = without_trailing_slash(wanted);
  if (present(path)) {
    require_directory(path, path);
    if (!overwrite && holds_run(path)) {
      fail_input("output directory {}: already holds a run; choose another with --out or replace it with --overwrite",
                 path.string());
    }
  }
  // What is there already, from here upwards, must let us write.
  fs::path part = path;
  while (!part.empty() && !present(part)) part = part.parent_path();
  if (part.empty()) part = ".";
  require_directory(path, part);
  // Only trying tells: where nothing can be created, access(2) may still allow it.
  std::string probe = (part / ".millrace-XXXXXX").string();
  if (::mkdtemp(probe.data()) == nullptr) {
    fail_directory(path, part, fmt::format("cannot be written: {}", std::strerror(errno)));
  }
  ::rmdir(probe.c_str());
}

void check_file(const fs::path& path, std::string_view option) {
  // Only trying tells: where nothing can be created, access(2) may still allow it.
  const int probe = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  int error = probe < 0 ? errno : 0;
  if (probe >= 0) {
    ::close(probe);
    ::unlink(path.c_str());
  } else if (error == EEXIST) {
    error = fs::is_directory(path) ? EISDIR : ::access(path.c_str(), W_OK) != 0 ? errno : 0;
  }
  if (error != 0) {
    fail_input("{} {}: cannot be written: {}; name another file", option, path.string(), std::strerror(error));
  }
}

void write_file(const fs::path& path, std::string_view text) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::not_found || type == fs::file_type::regular) return millrace::write_file(path, text);
  // Devices, pipes and links are written through; renaming would put a plain file in their place.
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool failed = file < 0;
  while (!failed && !text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    failed = count < 0 && errno != EINTR;
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
  }
  const int failure = errno;
  if (file >= 0) ::close(file);
  if (failed) fail_run("{}: cannot be written: {}", path.string(), std::strerror(failure));
}

RunDirectory RunDirectory::create(const fs::path& wanted, bool overwrite) {
  check_run_directory(wanted, overwrite);
  const fs::path path = without_trailing_slash(wanted);
  if (!make_directories(path) && overwrite) {
    for (const char* file : kRunFiles) {
      if (present(path / file) && ::unlink((path / file).c_str()) != 0) {
        fail_directory(path, path / file, fmt::format("cannot be removed: {}", std::strerror(errno)));
      }
    }
    std::error_code error;
    if (!fs::is_symlink(path / kCheckpoints)) fs::remove_all(path / kCheckpoints, error);
    if (error) fail_directory(path, path / kCheckpoints, fmt::format("cannot be removed: {}", error.message()));
    remove_half_written(path);
  }
  return RunDirectory(path);
}

RunDirectory RunDirectory::open(const fs::path& wanted) {
  const fs::path path = without_trailing_slash(wanted);
  if (!holds_run(path)) fail_input("{}: holds no run; write the directory that millrace train made", path.string());
  remove_half_written(path);
  return RunDirectory(path);
}

fs::path RunDirectory::next_numbered(std::string_view job_name, const fs::path& parent) {
  int number = 1;
  while (present(parent / fmt::format("{}-{}", job_name, number))) ++number;
  return parent / fmt::format("{}-{}", job_name, number);
}

RunDirectory RunDirectory::create_numbered(std::string_view job_name, const fs::path& parent) {
  for (;;) {
    const fs::path path = next_numbered(job_name, parent);
    check_run_directory(path, false);
    // mkdir decides between runs that start at the same moment.
    if (make_directories(path)) return RunDirectory(path);
  }
}

MetricsLog::MetricsLog(const RunDirectory& directory, const Position& first)
    : path_(directory.path() / "metrics.jsonl") {
  if (first.step > 0) {
    std::ifstream in(path_);
    std::string kept;
    for (std::string line; std::getline(in, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!record.is_object()) continue;  // cut off by what ended the run
      const bool is_step = record.contains("step");
      const auto& position = record.value(is_step ? "step" : "epoch", nlohmann::json());
      if (!position.is_number()) continue;
      const double at = position.get<double>();
      const bool is_before = is_step                ? at < static_cast<double>(first.step)
                             : first.evaluation_due ? at < first.epoch
                                                    : at <= first.epoch;
      if (is_before) kept += line + "\n";
    }
    write_file(path_, kept);
  }
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail_run("{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

MetricsLog::~MetricsLog() { ::close(file_); }

std::string MetricsLog::append(const nlohmann::ordered_json& record) {
  const std::string line = record.dump() + "\n";
  const off_t before = ::lseek(file_, 0, SEEK_END);
  const ssize_t count = ::write(file_, line.data(), line.size());
  if (count == static_cast<ssize_t>(line.size())) return {};
  const int error = count < 0 ? errno : ENOSPC;
  if (count > 0 && before >= 0) [[maybe_unused]]
    const int shortened = ::ftruncate(file_, before);
  return fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(error));
}

}  // namespace millrace::report
