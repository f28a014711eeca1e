// BERT's tokenizer: normalised text, cut at spaces and around punctuation, each word spelt with the longest pieces of
// the vocabulary. Gives what Hugging Face's BertTokenizerFast gives. Every token knows its bytes in the original text,
// so that a span of tokens can be read back from there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/text/normalizer.h"
#include "millrace/data/text/vocabulary.h"

namespace millrace::data {

// A range of bytes of the original text, [begin, end). Tokens spelt from one character (a Hangul syllable) share it.
struct Token {
  int32_t id = 0;
  int32_t begin = 0;
  int32_t end = 0;

  bool operator==(const Token&) const = default;
};

struct SpecialIds {
  int32_t pad = 0;
  int32_t unk = 0;
  int32_t cls = 0;
  int32_t sep = 0;
  int32_t mask = -1;  // -1 where the vocabulary has none: only pre-training needs it
};

class WordPiece {
 public:
  // Reads a vocab.txt. With `lower_case` ("uncased" models) accents are stripped too.
  static WordPiece load(const std::string& path, bool lower_case = true);
  // Refuses a vocabulary without [PAD], [UNK], [CLS] or [SEP]; `name` stands for it in the message.
  WordPiece(Vocabulary vocabulary, std::string_view name, bool lower_case = true);

  // Appends the text's tokens, without [CLS] and [SEP]. A special token written out in the text, "[MASK]" in just this
  // spelling, is that token wherever it stands, also within a word. Invalid UTF-8 is dropped. Safe to call from several
  // threads.
  void tokenize(std::string_view text, std::vector<Token>& tokens) const;
  std::vector<Token> tokenize(std::string_view text) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const SpecialIds& special() const { return special_; }

 private:
  static constexpr size_t kLongestWord = 100;  // characters; a longer word is [UNK] as a whole

  // The special token that begins at the byte, or -1.
  int32_t special_at(std::string_view text, size_t at) const;
  void tokenize_plain(std::string_view text, size_t begin, size_t end, NormalizedText& normalized,
                      std::vector<Token>& tokens) const;
  void tokenize_word(const NormalizedText& text, size_t first, size_t last, std::vector<Token>& tokens) const;

  Vocabulary vocabulary_;
  SpecialIds special_;
  bool lower_case_;
};

}  // namespace millrace::data
