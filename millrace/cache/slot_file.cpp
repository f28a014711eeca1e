#include "millrace/cache/slot_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace millrace::cache {
namespace {

constexpr int64_t kFiles = SlotFile::kFiles;

size_t file_of(int64_t slot) { return static_cast<size_t>(slot % kFiles); }
off_t offset_of(const SlotLayout& layout, int64_t slot) { return slot / kFiles * layout.slot_bytes; }

int punch(int descriptor, off_t offset, off_t bytes) {
  return ::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

}  // namespace

std::unique_ptr<SlotFile> SlotFile::in_memory() {
  Files files;
  for (Descriptor& file : files) file = make_memory_file("millrace-cache-entries");
  return std::unique_ptr<SlotFile>(new SlotFile(std::move(files), true, true));
}

std::unique_ptr<SlotFile> SlotFile::on_disk(const std::filesystem::path& directory) {
  Files files;
  for (Descriptor& file : files) file = make_disk_file(directory);
  const bool can_release = punch(files[0].get(), 0, kPage) == 0;  // tried while nothing is there
  return std::unique_ptr<SlotFile>(new SlotFile(std::move(files), false, can_release));
}

SlotFile::Address SlotFile::address() const {
  Address address{{}, in_memory_, can_release_};
  std::ranges::transform(files_, address.descriptors.begin(), &Descriptor::get);
  return address;
}

std::unique_ptr<SlotFile> SlotFile::of(pid_t process, const Address& address) {
  Files files;
  for (size_t i = 0; i < kFiles; ++i) files[i] = open_from(process, address.descriptors[i]);
  return std::unique_ptr<SlotFile>(new SlotFile(std::move(files), address.in_memory, address.can_release));
}

SlotFile::SlotFile(Files files, bool in_memory, bool can_release)
    : files_(std::move(files)), in_memory_(in_memory), can_release_(can_release) {
  // Samples come in random order, each in one read: reading ahead would fetch what nobody asked for. That the kernel
  // keeps what it has room for is welcome; those pages are the first that it gives up.
  if (in_memory_) return;
  for (const Descriptor& file : files_) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
}

SlotFile::~SlotFile() { unmap(); }

// By write, not through the mapping: fresh pages come several times faster, and memory that has run out is an error
// here instead of a signal.
int SlotFile::write(const SlotLayout& layout, int64_t slot, std::span<const std::byte> bytes) {
  const int file = files_[file_of(slot)].get();
  off_t offset = offset_of(layout, slot);
  if (beyond_file_limit(offset + static_cast<off_t>(bytes.size()))) return EFBIG;
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return 0;
}

bool SlotFile::read(const SlotLayout& layout, int64_t slot, std::span<std::byte> bytes) const {
  const int file = files_[file_of(slot)].get();
  off_t offset = offset_of(layout, slot);
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return true;
}

// Whoever reads a layout keeps it in use, so the views of an earlier one are no longer looked at.
const std::byte* SlotFile::view(const SlotLayout& layout, int64_t slot) {
  if (!in_memory_) return nullptr;
  if (mapped_.load(std::memory_order_acquire) != layout.number) map(layout);
  const std::byte* view = views_[file_of(slot)];
  return view == nullptr ? nullptr : view + offset_of(layout, slot);
}

bool SlotFile::release(const SlotLayout& layout, int64_t slot) {
  return can_release_ && punch(files_[file_of(slot)].get(), offset_of(layout, slot), layout.slot_bytes) == 0;
}

bool SlotFile::clear() {
  return std::ranges::all_of(files_, [](const Descriptor& file) { return ::ftruncate(file.get(), 0) == 0; });
}

// Read-only: no stray write of this process can reach an entry. Longer than the file is now: it grows under the views.
void SlotFile::map(const SlotLayout& layout) {
  const std::lock_guard lock(mapping_);
  if (mapped_.load(std::memory_order_relaxed) == layout.number) return;
  unmap();
  view_bytes_ = static_cast<size_t>((layout.num_slots + kFiles - 1) / kFiles * layout.slot_bytes);
  for (size_t i = 0; i < kFiles; ++i) {
    void* view = ::mmap(nullptr, view_bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, files_[i].get(), 0);
    if (view == MAP_FAILED) continue;  // no address space (`ulimit -v`): read() does as well
    ::madvise(view, view_bytes_, MADV_DONTDUMP);
    views_[i] = static_cast<std::byte*>(view);
  }
  mapped_.store(layout.number, std::memory_order_release);
}

void SlotFile::unmap() {
  for (std::byte*& view : views_) {
    if (view != nullptr) ::munmap(std::exchange(view, nullptr), view_bytes_);
  }
}

}  // namespace millrace::cache
