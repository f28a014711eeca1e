// A file being written: under a temporary name beside its place, removed unless it is put there. Under its own name it
// appears whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace millrace::state {

// Throws std::runtime_error with one line that names the file.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, size_t bytes);
  // On the disk before it has its name, so that a crash never leaves half a file under it.
  void put_in_place();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

// Whole or not at all.
void write_text(const std::string& path, std::string_view text);

// Brings the names in a directory to the disk; an errno, or 0, also where the file system has no such thing.
int flush_directory(const std::filesystem::path& directory);

}  // namespace millrace::state
