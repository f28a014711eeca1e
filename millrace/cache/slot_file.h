// One tier's entries of one depth: a slot of fixed size for every sample, in files without names. Slots that are not
// filled take no space (the files are sparse), so that where a sample lies follows from its number and nothing has to
// be allocated.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>

#include "millrace/cache/anonymous_file.h"

namespace millrace::cache {

// How the slots of a depth lie.
struct SlotLayout {
  int64_t num_slots = 0;
  int64_t slot_bytes = 0;  // whole pages
  uint64_t number = 0;     // of the layout: each has another, from 1
};

// Any number of threads and processes may use a slot file; who uses a slot is for them to agree on.
class SlotFile {
 public:
  // The kernel lets one thread at a time write to a file; neighbouring samples lie in different ones.
  static constexpr size_t kFiles = 8;
  static constexpr int64_t kPage = 4096;  // what a file can give back

  static std::unique_ptr<SlotFile> in_memory();
  static std::unique_ptr<SlotFile> on_disk(const std::filesystem::path& directory);
  // The same files in another process.
  struct Address {
    std::array<int32_t, kFiles> descriptors;
    bool in_memory;
    bool can_release;
  };
  Address address() const;
  static std::unique_ptr<SlotFile> of(pid_t process, const Address& address);
  ~SlotFile();
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;

  // 0, or the errno. A slot that could not be written holds anything.
  int write(const SlotLayout& layout, int64_t slot, std::span<const std::byte> bytes);
  bool read(const SlotLayout& layout, int64_t slot, std::span<std::byte> bytes) const;
  // Where a slot that has been written can be read without a copy; null where it cannot.
  const std::byte* view(const SlotLayout& layout, int64_t slot);

  // Gives the space of a slot, or all space, back; false: it is still taken.
  bool release(const SlotLayout& layout, int64_t slot);
  bool clear();
  // Whether release() works: not every file system can.
  bool can_release() const { return can_release_; }

 private:
  using Files = std::array<Descriptor, kFiles>;
  SlotFile(Files files, bool in_memory, bool can_release);
  void map(const SlotLayout& layout);
  void unmap();

  const Files files_;
  const bool in_memory_;
  const bool can_release_;

  std::mutex mapping_;
  std::atomic<uint64_t> mapped_{0};  // the number of the layout that the views are of
  std::array<std::byte*, kFiles> views_{};
  size_t view_bytes_ = 0;
};

}  // namespace millrace::cache
