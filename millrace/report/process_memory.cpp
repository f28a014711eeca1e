#include "millrace/report/process_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::report {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::optional<int64_t> parse_number(std::string_view text) {
  const size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  // Out of range is what cgroup v1 writes for "no limit" on some kernels.
  if (std::from_chars(text.data() + begin, text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

// The number after `key` at the start of a line: "VmRSS:  1234 kB", "inactive_file 4096".
std::optional<int64_t> read_field(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) return parse_number(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

std::optional<int64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return parse_number(line);  // "max" has no digits
}

struct ControllerFiles {
  const char* limit;
  const char* usage;
  const char* inactive;  // in memory.stat: file pages that the kernel drops when asked for memory
};
constexpr ControllerFiles kVersion2 = {"memory.max", "memory.current", "inactive_file "};
constexpr ControllerFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

int64_t left_in(const fs::path& group, const ControllerFiles& files) {
  const auto limit = read_number(group / files.limit);
  if (!limit) return kNoLimit;
  const int64_t usage = read_number(group / files.usage).value_or(0);
  const int64_t inactive = read_field(group / "memory.stat", files.inactive).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, usage - inactive));
}

// A limit binds everything below it. Inside a container the path may name groups that only the host sees; what is
// not there sets no limit, and the walk ends at the root that the container does see.
int64_t left_along(const fs::path& root, std::string_view group, const ControllerFiles& files) {
  int64_t least = left_in(root, files);
  fs::path path = root;
  for (const fs::path& part : fs::path(group).relative_path()) {
    path /= part;
    least = std::min(least, left_in(path, files));
  }
  return least;
}

}  // namespace

ProcessMemory process_memory() {
  const fs::path status = "/proc/self/status";
  return {read_field(status, "VmRSS:").value_or(0) * 1024, read_field(status, "VmHWM:").value_or(0) * 1024};
}

bool reset_peak_memory() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;
  return out.good();
}

int64_t available_memory(const fs::path& proc, const fs::path& cgroups) {
  int64_t least = kNoLimit;
  if (const auto kib = read_field(proc / "meminfo", "MemAvailable:")) least = *kib * 1024;

  // Lines are "0::/path" for version 2 and "4:memory:/path" for version 1's memory controller.
  std::ifstream groups(proc / "self" / "cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") least = std::min(least, left_along(cgroups, group, kVersion2));
    if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, left_along(cgroups / "memory", group, kVersion1));
    }
  }
  return least;
}

}  // namespace millrace::report
