// Files that never have a name, so that nothing is left of a run however it ends: the kernel frees them with the last
// process that holds them. Other processes of the same user on the same host reach them through the one that has them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <utility>

namespace millrace::cache {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  int get() const { return value_; }

 private:
  int value_ = -1;
};

// All throw std::runtime_error with one line.
// In memory; the label is what /proc shows.
Descriptor make_memory_file(const char* label);
// On the disk of a directory, which is made if it is not there.
Descriptor make_disk_file(const std::filesystem::path& directory);
// The same where the file system has no files without names (NFS): under a name of its own for the moment between two
// system calls.
Descriptor make_disk_file_by_name(const std::filesystem::path& directory);
// What another process has open, for reading and writing.
Descriptor open_from(pid_t process, int descriptor);

// Whether a file may not be that long (`ulimit -f`): who writes there all the same is killed by a signal.
bool beyond_file_limit(int64_t bytes);

}  // namespace millrace::cache
