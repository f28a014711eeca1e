#include "millrace/data/files/token_files.h"

#include <algorithm>
#include <cassert>
#include <filesystem>
#include <mutex>

#include "millrace/base/error.h"
#include "millrace/data/files/listing.h"
#include "millrace/data/files/parallel.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_at(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail_input("{}: there is no such file or folder; name a file of tokens, or a folder of .bin files", path);
  }
  if (!fs::is_directory(status)) return {path};
  std::vector<std::string> files = files_ending(path, ".bin");
  if (files.empty()) fail_input("{}: the folder has no .bin files; name a file of tokens, or a folder of them", path);
  return files;
}

int64_t tokens_of(const std::string& path, int token_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) fail_input("{}: not a file; name a file of tokens", path);
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) fail_input("{}: cannot be looked at: {}", path, error.message());
  if (bytes % token_bytes != 0) {
    fail_input("{}: {} bytes are no whole number of tokens of {} bytes; write the file again, or data.token_bytes: {}",
               path, bytes, token_bytes, token_bytes == 2 ? 4 : 2);
  }
  return bytes / token_bytes;
}

}  // namespace

TokenFiles::TokenFiles(const std::string& path, int token_bytes) : files_(files_at(path)), token_bytes_(token_bytes) {
  if (token_bytes != 2 && token_bytes != 4) fail_input("data.token_bytes is {}; write 2 or 4", token_bytes);
  for (size_t file = 0; file < files_.size(); ++file) tokens_.push_back(tokens_of(files_.path(file), token_bytes));
}

void TokenFiles::read(size_t file, int64_t position, std::span<uint32_t> tokens) const {
  assert(position >= 0 && position + static_cast<int64_t>(tokens.size()) <= tokens_[file]);
  const auto width = static_cast<size_t>(token_bytes_);
  const size_t bytes = tokens.size() * width;
  // Read to the end of the span, then widened from the front: a token is never written over bytes still to be read.
  auto* raw = reinterpret_cast<uint8_t*>(tokens.data()) + tokens.size_bytes() - bytes;
  const size_t got = files_.get(file)->read_at(position * token_bytes_, raw, bytes);
  if (got != bytes) {
    fail_run("{}: {} tokens at its opening, now it ends after {}; was it changed?", files_.path(file), tokens_[file],
             position + static_cast<int64_t>(got / width));
  }
  for (uint32_t& token : tokens) {
    uint32_t value = 0;
    for (size_t byte = 0; byte < width; ++byte) value |= uint32_t{raw[byte]} << (8 * byte);
    raw += width;
    token = value;
  }
}

LargestToken largest_token(const TokenFiles& files, int threads,
                           const std::function<void(int64_t done, int64_t total)>& progress) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  struct Piece {
    size_t file = 0;
    int64_t begin = 0, end = 0;
  };
  std::vector<Piece> pieces;
  int64_t total = 0, done = 0;
  for (size_t file = 0; file < files.num_files(); ++file) {
    total += files.tokens(file);
    for (int64_t begin = 0; begin < files.tokens(file); begin += kPiece) {
      pieces.push_back({file, begin, std::min(begin + kPiece, files.tokens(file))});
    }
  }
  std::vector<LargestToken> found(pieces.size());
  std::mutex mutex;
  for_each_piece(static_cast<int64_t>(pieces.size()), threads, [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    std::vector<uint32_t> tokens(static_cast<size_t>(piece.end - piece.begin));
    files.read(piece.file, piece.begin, tokens);
    const auto largest = std::max_element(tokens.begin(), tokens.end());
    found[static_cast<size_t>(i)] = {*largest, piece.file, piece.begin + (largest - tokens.begin())};
    const std::lock_guard lock(mutex);
    done += piece.end - piece.begin;
    if (progress) progress(done, total);
  });
  const auto largest =
      std::max_element(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  return largest == found.end() ? LargestToken{} : *largest;
}

}  // namespace millrace::data
