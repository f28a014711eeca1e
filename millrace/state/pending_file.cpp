#include "millrace/state/pending_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::state {

PendingFile::PendingFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.tmp{}", path, ::getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("created");
}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void PendingFile::write(const void* data, size_t bytes) {
  const char* rest = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, rest, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written");
    rest += written;
    bytes -= static_cast<size_t>(written);
  }
}

void PendingFile::put_in_place() {
  if (::fsync(descriptor_) != 0) fail("written");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("written");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("put in place");
  temporary_.clear();
  flush_directory(std::filesystem::path(path_).parent_path());  // else only its survival of a power cut is unsure
}

void PendingFile::fail(const char* what) const { fail_run("{}: cannot be {}: {}", path_, what, std::strerror(errno)); }

void write_text(const std::string& path, std::string_view text) {
  PendingFile file(path);
  file.write(text.data(), text.size());
  file.put_in_place();
}

int flush_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  return error == EINVAL || error == ENOTSUP ? 0 : error;
}

}  // namespace millrace::state
