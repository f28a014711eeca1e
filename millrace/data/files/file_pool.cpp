#include "millrace/data/files/file_pool.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::data {
namespace {

size_t share_of_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 4096;
  return std::clamp<size_t>(limit.rlim_cur / 4, 4, 4096);
}

}  // namespace

int open_to_read(const std::string& path) {
  int descriptor;
  do descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

OpenFile::OpenFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {
  struct stat about {};
  if (::fstat(descriptor_, &about) != 0) {
    const int reason = errno;
    ::close(descriptor_);
    fail_run("{}: cannot be looked at: {}", path_, std::strerror(reason));
  }
  size_ = about.st_size;
}

OpenFile::~OpenFile() { ::close(descriptor_); }

size_t OpenFile::read_at(int64_t offset, void* into, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(descriptor_, static_cast<char*>(into) + done, bytes - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_run("{}: cannot be read at byte {}: {}", path_, offset, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

FilePool::FilePool(std::vector<std::string> paths, size_t max_open)
    : paths_(std::move(paths)), max_open_(max_open > 0 ? max_open : share_of_descriptors()), files_(paths_.size()) {}

std::shared_ptr<const OpenFile> FilePool::get(size_t file) const {
  {
    const std::lock_guard lock(mutex_);
    if (files_[file]) return files_[file];
  }
  // Opened outside the lock: on a network file system this takes long.
  int descriptor = open_to_read(paths_[file]);
  while (descriptor < 0 && (errno == EMFILE || errno == ENFILE) && close_oldest()) {
    descriptor = open_to_read(paths_[file]);
  }
  if (descriptor < 0) {
    const int reason = errno;
    fail_run("{}: cannot be opened: {}{}", paths_[file], std::strerror(reason),
             reason == EMFILE ? "; raise the limit with ulimit -n" : "");
  }
  auto opened = std::make_shared<const OpenFile>(descriptor, paths_[file]);

  std::shared_ptr<const OpenFile> closed;  // outlives the lock
  const std::lock_guard lock(mutex_);
  if (files_[file]) return files_[file];  // another thread was faster
  if (opened_.size() >= max_open_) {
    closed = std::exchange(files_[opened_.front()], nullptr);
    opened_.pop_front();
  }
  files_[file] = opened;
  opened_.push_back(file);
  return opened;
}

bool FilePool::close_oldest() const {
  std::shared_ptr<const OpenFile> closed;
  const std::lock_guard lock(mutex_);
  if (opened_.empty()) return false;
  closed = std::exchange(files_[opened_.front()], nullptr);
  opened_.pop_front();
  return true;
}

}  // namespace millrace::data
