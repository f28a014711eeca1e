#include "millrace/cache/anonymous_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "millrace/base/error.h"

namespace millrace::cache {

namespace fs = std::filesystem;

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

Descriptor make_memory_file(const char* label) {
  const int descriptor = ::memfd_create(label, MFD_CLOEXEC);
  if (descriptor < 0) fail_run("{}: no memory to share with other processes: {}", label, std::strerror(errno));
  return Descriptor(descriptor);
}

Descriptor make_disk_file(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail_run("{}: cannot be created: {}", directory.string(), error.message());
  const int descriptor = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0) return Descriptor(descriptor);
  if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) return make_disk_file_by_name(directory);
  fail_run("{}: no file can be created: {}", directory.string(), std::strerror(errno));
}

Descriptor make_disk_file_by_name(const fs::path& directory) {
  std::string name = (directory / fmt::format(".millrace-cache-{}-XXXXXX", ::getpid())).string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) fail_run("{}: no file can be created: {}", directory.string(), std::strerror(errno));
  ::unlink(name.c_str());
  return Descriptor(descriptor);
}

Descriptor open_from(pid_t process, int descriptor) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) fail_run("{}: cannot be opened: {}", path, std::strerror(errno));
  return Descriptor(opened);
}

bool beyond_file_limit(int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         static_cast<rlim_t>(bytes) > limit.rlim_cur;
}

}  // namespace millrace::cache
