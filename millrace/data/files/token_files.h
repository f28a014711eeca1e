// Files of tokens as nanoGPT writes them: nothing but little-endian numbers of two or four bytes. Read piece by piece
// where they lie, never as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "millrace/data/files/file_pool.h"

namespace millrace::data {

class TokenFiles {
 public:
  // A file, or a folder whose *.bin files are taken in number order. What is missing, or has half a token at its end,
  // is std::invalid_argument.
  TokenFiles(const std::string& path, int token_bytes);

  size_t num_files() const { return tokens_.size(); }
  const std::string& path(size_t file) const { return files_.path(file); }
  int64_t tokens(size_t file) const { return tokens_[file]; }
  int token_bytes() const { return token_bytes_; }

  // Tokens of one file from a position on, all of them within it. Safe to call from several threads.
  void read(size_t file, int64_t position, std::span<uint32_t> tokens) const;

 private:
  FilePool files_;
  int token_bytes_;
  std::vector<int64_t> tokens_;  // in each file
};

struct LargestToken {
  uint32_t token = 0;
  size_t file = 0;
  int64_t position = 0;  // of the first such one
};

// Reads everything. `progress` is called with tokens done and in all, one call at a time.
LargestToken largest_token(const TokenFiles& files, int threads,
                           const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace millrace::data
