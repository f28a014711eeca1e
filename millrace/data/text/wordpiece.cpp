#include "millrace/data/text/wordpiece.h"

#include <array>
#include <limits>

#include "millrace/base/error.h"
#include "millrace/data/text/read_text.h"

namespace millrace::data {

namespace {

int32_t required(const Vocabulary& vocabulary, std::string_view token, std::string_view name) {
  const int32_t id = vocabulary.find(token);
  if (id < 0) {
    fail_input("{}: no {} among {} tokens; a BERT vocabulary has [PAD], [UNK], [CLS] and [SEP], each on its line", name,
               token, vocabulary.size());
  }
  return id;
}

}  // namespace

WordPiece WordPiece::load(const std::string& path, bool lower_case) {
  return WordPiece(Vocabulary(read_text(path, "vocabulary (vocab.txt)"), path), path, lower_case);
}

WordPiece::WordPiece(Vocabulary vocabulary, std::string_view name, bool lower_case)
    : vocabulary_(std::move(vocabulary)), lower_case_(lower_case) {
  special_.pad = required(vocabulary_, "[PAD]", name);
  special_.unk = required(vocabulary_, "[UNK]", name);
  special_.cls = required(vocabulary_, "[CLS]", name);
  special_.sep = required(vocabulary_, "[SEP]", name);
  special_.mask = vocabulary_.find("[MASK]");
}

std::vector<Token> WordPiece::tokenize(std::string_view text) const {
  std::vector<Token> tokens;
  tokenize(text, tokens);
  return tokens;
}

void WordPiece::tokenize(std::string_view text, std::vector<Token>& tokens) const {
  if (text.size() > std::numeric_limits<int32_t>::max()) {
    fail_input("a text of {} bytes is too long to tokenize; cut it below 2 GiB", text.size());
  }
  NormalizedText normalized;
  size_t begin = 0;
  for (size_t at = text.find('['); at != std::string_view::npos; at = text.find('[', at)) {
    const int32_t id = special_at(text, at);
    if (id < 0) {
      ++at;
      continue;
    }
    const size_t end = at + vocabulary_.token(id).size();
    tokenize_plain(text, begin, at, normalized, tokens);
    tokens.push_back({id, static_cast<int32_t>(at), static_cast<int32_t>(end)});
    begin = at = end;
  }
  tokenize_plain(text, begin, text.size(), normalized, tokens);
}

int32_t WordPiece::special_at(std::string_view text, size_t at) const {
  for (const int32_t id : {special_.pad, special_.unk, special_.cls, special_.sep, special_.mask}) {
    if (id >= 0 && text.substr(at).starts_with(vocabulary_.token(id))) return id;
  }
  return -1;
}

void WordPiece::tokenize_plain(std::string_view text, size_t begin, size_t end, NormalizedText& normalized,
                               std::vector<Token>& tokens) const {
  if (begin == end) return;
  normalize(text, begin, end, lower_case_, normalized);
  const auto& chars = normalized.chars;
  for (size_t first = 0; first < chars.size();) {
    size_t last = first + 1;
    if (chars[first].kind == CharKind::Word) {
      while (last < chars.size() && chars[last].kind == CharKind::Word) ++last;
    }
    if (chars[first].kind != CharKind::Space) tokenize_word(normalized, first, last, tokens);
    first = last;
  }
}

void WordPiece::tokenize_word(const NormalizedText& text, size_t first, size_t last, std::vector<Token>& tokens) const {
  const size_t before = tokens.size();
  const auto& chars = text.chars;
  const auto unknown = [&] {
    tokens.resize(before);
    tokens.push_back({special_.unk, chars[first].begin, chars[last - 1].end});
  };
  if (last - first > kLongestWord) return unknown();

  std::array<uint64_t, kLongestWord> hashes;  // of the piece's prefix that ends with each character
  for (size_t begin = first; begin < last;) {
    const bool continues = begin > first;
    uint64_t hash = Vocabulary::begin_hash(continues);
    size_t end = begin;
    for (size_t bytes = 0; end < last; ++end) {
      const std::string_view c = text.slice(end, end + 1);
      bytes += c.size();
      if (bytes > vocabulary_.longest_token_bytes()) break;
      hash = Vocabulary::hash_on(hash, c);
      hashes[end - begin] = hash;
    }
    int32_t id = -1;
    for (; end > begin; --end) {
      id = vocabulary_.find(text.slice(begin, end), continues, hashes[end - begin - 1]);
      if (id >= 0) break;
    }
    if (id < 0) return unknown();
    tokens.push_back({id, chars[begin].begin, chars[end - 1].end});
    begin = end;
  }
}

}  // namespace millrace::data
