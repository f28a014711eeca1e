// A file being written: under a temporary, hidden name beside its place, removed unless it is finished. Under its
// own name it appears whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Throws std::runtime_error with one line that names the file.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(std::span<const uint8_t> bytes);
  void write(std::string_view text);
  void write(const void* data, size_t bytes) { write(std::span(static_cast<const uint8_t*>(data), bytes)); }

  // Durable: on the disk before it has its name, so that a power cut never leaves half a file under it. Without, only
  // a crash of the process is survived, which is enough where many small files are synced together afterwards.
  void put_in_place(bool durable = true);

  int64_t bytes() const { return bytes_; }

  // What a killed process left behind in a folder and those below. Only where nobody else is writing there.
  static void remove_leftovers(const std::string& folder);
  // The same of one file.
  static void remove_leftovers_of(const std::filesystem::path& path);

 private:
  static constexpr size_t kBuffer = size_t{1} << 16;

  void flush();
  void write_out(const uint8_t* data, size_t bytes);
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  std::vector<uint8_t> buffer_;  // small pieces are collected, large ones pass by
};

// Whole or not at all.
void write_file(const std::string& path, std::string_view text);

// Brings the names in a directory to the disk; an errno, or 0, also where the file system has no such thing.
int flush_directory(const std::filesystem::path& directory);

}  // namespace millrace
