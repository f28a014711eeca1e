// Token sequences as BERT reads them: [CLS] a [SEP], or [CLS] a [SEP] b [SEP], cut to a length and padded to it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/data/text/wordpiece.h"

namespace millrace::data {

struct EncodeOptions {
  int32_t max_tokens = 512;  // with [CLS] and [SEP]
  bool pad = true;           // to max_tokens
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> segments;  // 1 for b and its [SEP], otherwise 0
  std::vector<Token> tokens;      // the same ids with their bytes in a or b; {id, 0, 0} for what is in neither
  int32_t num_tokens = 0;         // without padding: the attention mask is 1 up to here
};

// Too long a text loses its end.
Encoding encode(const WordPiece& tokenizer, std::string_view text, const EncodeOptions& options);

// Of too long a pair the longer text is cut first, then both alike: Hugging Face's "longest_first".
Encoding encode_pair(const WordPiece& tokenizer, std::string_view a, std::string_view b, const EncodeOptions& options);

// How many tokens of each text remain when both together may have `room`.
std::pair<int64_t, int64_t> longest_first(int64_t a, int64_t b, int64_t room);

// Writes [CLS] a [SEP] b [SEP], or without `pair` only [CLS] a [SEP], into buffers that are at least as long; the
// rest of them is padding. Returns the number of tokens before the padding.
int32_t write_sequence(const SpecialIds& special, std::span<const Token> a, std::span<const Token> b, bool pair,
                       std::span<int32_t> ids, std::span<int32_t> segments);

}  // namespace millrace::data
