#include "millrace/data/text/write_tokens.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"
#include "millrace/data/text/tsv.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

class TokenWriter {
 public:
  TokenWriter(const std::string& path, const WordPiece& tokenizer, int token_bytes)
      : file_(path), tokenizer_(tokenizer), token_bytes_(static_cast<size_t>(token_bytes)) {}

  void add(std::string_view text) {
    tokens_.clear();
    tokenizer_.tokenize(text, tokens_);
    for (const Token& token : tokens_) put(token.id);
    open_ = open_ || !tokens_.empty();
  }
  void end_text() {
    if (!open_) return;
    put(tokenizer_.special().sep);
    ++written_.texts;
    open_ = false;
  }
  WrittenTokens finish(const std::string& source) {
    end_text();
    if (written_.texts == 0) fail_input("{}: no text in it; name a file with some", source);
    file_.put_in_place();
    written_.bytes = file_.bytes();
    return written_;
  }

 private:
  void put(int32_t id) {
    uint8_t bytes[4];
    for (size_t i = 0; i < token_bytes_; ++i) bytes[i] = static_cast<uint8_t>(static_cast<uint32_t>(id) >> (8 * i));
    file_.write(std::span<const uint8_t>(bytes, token_bytes_));
    ++written_.tokens;
  }

  PendingFile file_;
  const WordPiece& tokenizer_;
  size_t token_bytes_;
  std::vector<Token> tokens_;
  bool open_ = false;  // a text has begun
  WrittenTokens written_;
};

}  // namespace

WrittenTokens write_tokens(const std::string& source, const std::string& destination, const WordPiece& tokenizer,
                           int token_bytes, const std::function<void(int64_t done, int64_t total)>& progress) {
  if (token_bytes == 2 && tokenizer.vocabulary().size() > 65'536) {
    fail_input("the vocabulary has {} tokens, and 2 bytes tell 65536 apart; write --token-bytes 4",
               tokenizer.vocabulary().size());
  }
  std::error_code error;
  if (!fs::is_regular_file(source, error)) fail_input("{}: there is no such file; name a text or a .tsv", source);
  if (fs::exists(destination, error)) fail_input("{}: is there already; remove it, or name a new file", destination);
  if (fs::path(source).extension() == ".tsv") {
    const TsvFile file = read_tsv(source, nullptr);
    TokenWriter writer(destination, tokenizer, token_bytes);
    for (size_t row = 0; row < file.rows.size(); ++row) {
      writer.add(file.sentence(row));
      writer.end_text();
      if (progress) progress(static_cast<int64_t>(file.rows[row].begin), static_cast<int64_t>(file.text.size()));
    }
    return writer.finish(source);
  }
  const auto total = static_cast<int64_t>(fs::file_size(source, error));
  std::ifstream stream(source, std::ios::binary);
  if (error || !stream) fail_input("{}: cannot be opened: {}", source, std::strerror(errno));
  TokenWriter writer(destination, tokenizer, token_bytes);
  int64_t done = 0;
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      writer.end_text();
    } else {
      writer.add(line);
    }
    done += static_cast<int64_t>(line.size()) + 1;
    if (progress) progress(std::min(done, total), total);
  }
  if (stream.bad()) fail_run("{}: cannot be read after byte {}", source, done);
  return writer.finish(source);
}

}  // namespace millrace::data
