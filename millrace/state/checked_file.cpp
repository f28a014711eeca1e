#include "millrace/state/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/state/sealed_json.h"

namespace millrace::state {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // still in the cache when its checksum is taken

}  // namespace

CheckedFile::CheckedFile(const std::filesystem::path& path) : path_(path.string()) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) {
    if (errno == ENOENT) fail_input("{}: is missing", path_);
    if (errno == ELOOP) fail_input("{}: is a symbolic link; put the file itself there", path_);
    fail_input("{}: cannot be opened: {}", path_, std::strerror(errno));
  }
  struct stat status = {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail_input("{}: is not a file", path_);
  }
  bytes_ = status.st_size;
}

CheckedFile::~CheckedFile() { ::close(descriptor_); }

void CheckedFile::require_bytes(int64_t expected) const {
  if (bytes_ != expected) fail_input("{}: has {} bytes, the manifest says {}", path_, bytes_, expected);
}

void CheckedFile::read(void* data, size_t bytes) {
  char* rest = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::read(descriptor_, rest, std::min(bytes, kPiece));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_input("{}: cannot be read at byte {}: {}", path_, at_, std::strerror(errno));
    if (count == 0) fail_input("{}: ends after {} of {} bytes", path_, at_, bytes_);
    checksum_.add(rest, static_cast<size_t>(count));
    rest += count;
    bytes -= static_cast<size_t>(count);
    at_ += count;
  }
}

void CheckedFile::skip(uint64_t bytes) {
  std::vector<char> piece(std::min<uint64_t>(bytes, kPiece));
  for (; bytes > piece.size(); bytes -= piece.size()) read(piece.data(), piece.size());
  read(piece.data(), bytes);
}

void CheckedFile::require_checksum(const std::string& expected) {
  skip(static_cast<uint64_t>(bytes_ - at_));
  const std::string found = checksum_.digits();
  if (found != expected) {
    fail_input("{}: has checksum {}, the manifest says {}: its bytes were changed", path_, found, expected);
  }
}

std::string read_sealed(const std::filesystem::path& path, int64_t most_bytes) {
  CheckedFile file(path);
  if (file.bytes() > most_bytes) {
    fail_input("{}: has {} bytes, at most {} can be read", path.string(), file.bytes(), most_bytes);
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  file.read(text.data(), text.size());
  check_seal(text, path.string());
  return text;
}

}  // namespace millrace::state
