#include "millrace/base/pending_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".millrace-tmp";

// All temporary names of a file begin so; a process's number follows.
std::string start_of_temporary(const fs::path& path) { return fmt::format(".{}{}", path.filename().string(), kMark); }

std::string temporary_beside(const fs::path& path) {
  return (path.parent_path() / fmt::format("{}{}", start_of_temporary(path), ::getpid())).string();
}

}  // namespace

PendingFile::PendingFile(const std::string& path) : path_(path), temporary_(temporary_beside(path)) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("created");
}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void PendingFile::write(std::span<const uint8_t> bytes) {
  bytes_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() > kBuffer) {
    write_out(bytes.data(), bytes.size());
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void PendingFile::write(std::string_view text) {
  write(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

void PendingFile::put_in_place(bool durable) {
  flush();
  if (durable && ::fsync(descriptor_) != 0) fail("written");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("written");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("put in place");
  temporary_.clear();
  if (!durable) return;
  flush_directory(fs::path(path_).parent_path());  // else only its survival of a power cut is unsure
}

void PendingFile::remove_leftovers(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.front() != '.' || name.find(kMark) == std::string::npos) continue;
    std::error_code ignored;
    fs::remove(entry.path(), ignored);
  }
}

void PendingFile::remove_leftovers_of(const fs::path& path) {
  const std::string start = start_of_temporary(path);
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with(start)) fs::remove(entry->path(), ignored);
  }
}

void PendingFile::flush() {
  write_out(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void PendingFile::write_out(const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written");
    data += written;
    bytes -= static_cast<size_t>(written);
  }
}

void PendingFile::fail(const char* what) const { fail_run("{}: cannot be {}: {}", path_, what, std::strerror(errno)); }

void write_file(const std::string& path, std::string_view text) {
  PendingFile file(path);
  file.write(text);
  file.put_in_place();
}

int flush_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  return error == EINVAL || error == ENOTSUP ? 0 : error;
}

}  // namespace millrace
