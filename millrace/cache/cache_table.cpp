#include "millrace/cache/cache_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::cache {
namespace {

namespace fs = std::filesystem;

// Processes share them: an atomic with a lock would have it in one process only.
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

constexpr const char* kLabel = "millrace-cache-table";

int64_t whole_pages(int64_t bytes) { return (bytes + SlotFile::kPage - 1) / SlotFile::kPage * SlotFile::kPage; }

struct Ticket {
  pid_t process = 0;
  int descriptor = -1;
  std::array<uint64_t, 2> identity{};
};

Ticket parse(const std::string& text) {
  Ticket ticket;
  std::istringstream in(text);
  in >> ticket.process >> ticket.descriptor >> std::hex >> ticket.identity[0] >> ticket.identity[1];
  if (!in) fail_input("\"{}\" is not the ticket of a cache", text);
  return ticket;
}

// The number may be another process's where containers on one host count their own: look before opening.
Descriptor open_table(const Ticket& ticket) {
  std::error_code error;
  const fs::path link = fmt::format("/proc/{}/fd/{}", ticket.process, ticket.descriptor);
  const std::string target = fs::read_symlink(link, error).string();
  if (target.find(kLabel) == std::string::npos) {
    fail_run("{}: the cache of process {} cannot be reached from here ({})", link.string(), ticket.process,
             error ? error.message() : target);
  }
  return open_from(ticket.process, ticket.descriptor);
}

}  // namespace

CacheTable::CacheTable(int64_t num_samples) : creator_(::getpid()), file_(make_memory_file(kLabel)) {
  const int64_t bytes = table_bytes(num_samples);
  if (beyond_file_limit(bytes)) fail_run("the cache's table takes {} bytes, more than `ulimit -f` allows", bytes);
  if (::ftruncate(file_.get(), bytes) != 0) fail_run("the cache's table: {}", std::strerror(errno));
  map(bytes);
  head_->num_samples = num_samples;
  std::random_device random;
  for (uint64_t& word : head_->identity) word = static_cast<uint64_t>(random()) << 32 | random();
  ticket_ = fmt::format("{} {} {:x} {:x}", creator_, file_.get(), head_->identity[0], head_->identity[1]);
}

CacheTable::CacheTable(const std::string& ticket)
    : creator_(parse(ticket).process), file_(open_table(parse(ticket))), ticket_(ticket) {
  std::array<uint64_t, 2> identity{};
  static_assert(offsetof(CacheHead, identity) == 0);
  if (::pread(file_.get(), &identity, sizeof(identity), 0) != sizeof(identity) || identity != parse(ticket).identity) {
    fail_run("process {} has another cache than that of the ticket", creator_);
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_run("the cache's table: {}", std::strerror(errno));
  map(status.st_size);
}

CacheTable::~CacheTable() { ::munmap(head_, static_cast<size_t>(bytes_)); }

// Fresh pages are zero, which is what everything in the table begins with; those of samples that never come are never
// there.
void CacheTable::map(int64_t bytes) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (data == MAP_FAILED) fail_run("the cache's table of {} bytes: {}", bytes, std::strerror(errno));
  head_ = static_cast<CacheHead*>(data);
  bytes_ = bytes;
}

int64_t CacheTable::index_bytes(int64_t num_samples) {
  return whole_pages(num_samples * static_cast<int64_t>(sizeof(CacheEntry)));
}

int64_t CacheTable::table_bytes(int64_t num_samples) {
  return whole_pages(sizeof(CacheHead)) + static_cast<int64_t>(kDepths) * index_bytes(num_samples);
}

CacheEntry& CacheTable::entry(size_t depth, int64_t sample) const {
  std::byte* index = reinterpret_cast<std::byte*>(head_) + whole_pages(sizeof(CacheHead)) +
                     static_cast<int64_t>(depth) * index_bytes(head_->num_samples);
  return reinterpret_cast<CacheEntry*>(index)[sample];
}

void CacheTable::forget_entries(size_t depth) {
  const int64_t bytes = index_bytes(head_->num_samples);
  const off_t offset = whole_pages(sizeof(CacheHead)) + static_cast<int64_t>(depth) * bytes;
  if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes) == 0) return;
  for (int64_t sample = 0; sample < head_->num_samples; ++sample) entry(depth, sample).word.publish(Place::Nowhere);
}

CacheTable::Lock::Lock(CacheTable& table) : threads_(table.mutex_), processes_(table.file_.get()) {
  while (::flock(processes_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

CacheTable::Lock::~Lock() { ::flock(processes_, LOCK_UN); }

}  // namespace millrace::cache
