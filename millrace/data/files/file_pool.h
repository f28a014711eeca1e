// The files of one data set, open for reading. Opened once and kept, but never so many that the process runs out of
// descriptors: past a share of its limit the one opened longest ago is closed, and opened again when needed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::data {

class OpenFile {
 public:
  // Takes a descriptor over.
  OpenFile(int descriptor, std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  // Bytes read: fewer than asked only at the end of the file. Safe to call from several threads.
  size_t read_at(int64_t offset, void* into, size_t bytes) const;

 private:
  int descriptor_;
  std::string path_;
  int64_t size_ = 0;
};

// -1 and errno where it cannot be opened.
int open_to_read(const std::string& path);

class FilePool {
 public:
  // `max_open` 0: a quarter of the process's soft limit, so that several data sets and everything else fit.
  explicit FilePool(std::vector<std::string> paths, size_t max_open = 0);

  size_t size() const { return paths_.size(); }
  const std::string& path(size_t file) const { return paths_[file]; }
  size_t max_open() const { return max_open_; }

  // Safe to call from several threads. The file stays open as long as the caller holds it.
  std::shared_ptr<const OpenFile> get(size_t file) const;

 private:
  bool close_oldest() const;

  std::vector<std::string> paths_;
  size_t max_open_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const OpenFile>> files_;
  mutable std::deque<size_t> opened_;  // those in files_, oldest first
};

}  // namespace millrace::data
