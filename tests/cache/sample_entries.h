// Entries that say whose they are, and the files behind a cache as the kernel shows them.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "millrace/cache/activation_cache.h"

namespace millrace::cache {

// Floats of any bits, all different for every prefix, sample and augmentation.
inline std::vector<std::byte> entry_of(const FrozenPrefix& prefix, int64_t sample, uint64_t augmentation,
                                       int64_t bytes) {
  std::vector<std::byte> entry(static_cast<size_t>(bytes));
  uint64_t state = prefix.weights * 1000003 + static_cast<uint64_t>(prefix.layers) * 10007 +
                   static_cast<uint64_t>(sample) * 101 + augmentation;
  for (size_t i = 0; i < entry.size(); i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = state ^ state >> 29;
    std::memcpy(entry.data() + i, &word, std::min<size_t>(8, entry.size() - i));
  }
  return entry;
}

// This process's descriptors of what lies under a path as /proc shows it.
inline std::vector<int> descriptors_of(const std::string& start) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(start)) found.push_back(std::stoi(entry.path().filename().string()));
  }
  return found;
}

inline const std::string kMemoryFiles = "/memfd:millrace-cache-entries";

inline int64_t bytes_taken_by(const std::vector<int>& descriptors) {
  int64_t bytes = 0;
  for (const int descriptor : descriptors) {
    struct stat status {};
    if (::fstat(descriptor, &status) == 0) bytes += status.st_blocks * 512;
  }
  return bytes;
}

inline size_t files_in(const std::filesystem::path& directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

}  // namespace millrace::cache
