// A file of a checkpoint, read once from its beginning to its end while its checksum is taken. Everything throws
// std::invalid_argument with one line that names the file, a disk that cannot be read too: to the reader of a
// checkpoint it is damage all the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "millrace/state/checksum.h"

namespace millrace::state {

class CheckedFile {
 public:
  // Refuses what is no plain file, symbolic links too: they may lead anywhere.
  explicit CheckedFile(const std::filesystem::path& path);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  int64_t bytes() const { return bytes_; }
  void require_bytes(int64_t expected) const;

  void read(void* data, size_t bytes);  // all of them
  void skip(uint64_t bytes);            // not kept, but in the checksum
  // Of the whole file: reads what is left of it.
  void require_checksum(const std::string& expected);

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0, at_ = 0;
  Checksum checksum_;
};

// All of a file of sealed JSON of at most so many bytes, its seal checked.
std::string read_sealed(const std::filesystem::path& path, int64_t most_bytes);

}  // namespace millrace::state
