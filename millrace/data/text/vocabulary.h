// The tokens of a model, in the order of their ids, as read from a vocab.txt: one token per line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::data {

class Vocabulary {
 public:
  // `name` stands for the text in messages. Of a token that occurs twice the later line counts, as for Hugging Face.
  Vocabulary(std::string text, std::string_view name);

  int32_t size() const { return static_cast<int32_t>(lines_.size()); }
  std::string_view token(int32_t id) const { return text_of(lines_[static_cast<size_t>(id)]); }
  size_t longest_token_bytes() const { return longest_token_bytes_; }

  // The id, or -1.
  int32_t find(std::string_view token) const { return find(token, false, hash_on(begin_hash(false), token)); }

  // The same for a piece of a word whose hash the caller has built up: a word's prefixes are looked up one by one,
  // and each hash goes on from the shorter one's. A piece that continues a word stands in the vocabulary with "##"
  // before it.
  int32_t find(std::string_view piece, bool continues, uint64_t hash) const;
  static uint64_t begin_hash(bool continues);
  static uint64_t hash_on(uint64_t hash, std::string_view bytes);

 private:
  struct Line {
    size_t begin = 0, bytes = 0;
  };
  struct Slot {
    uint32_t tag = 0;  // the hash's upper half: most slots that do not match are told by it
    int32_t id = -1;
  };

  std::string_view text_of(const Line& line) const { return std::string_view(text_).substr(line.begin, line.bytes); }
  void insert(int32_t id);

  std::string text_;
  std::vector<Line> lines_;
  std::vector<Slot> slots_;  // open addressing, at most half full; a power of two
  size_t longest_token_bytes_ = 0;
};

}  // namespace millrace::data
