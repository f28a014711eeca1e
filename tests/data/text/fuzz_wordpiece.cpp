// Any bytes as text: tokens of the vocabulary, whose bytes lie in the text and in its order. The same bytes as a
// vocabulary: an error a caller expects, or tokens that are found.
// For clang's libFuzzer (-fsanitize=fuzzer,address,undefined); seeds in corpus/wordpiece.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/data/text/encoding.h"

namespace {

using namespace millrace::data;

void check_tokens(const WordPiece& tokenizer, std::string_view text) {
  int32_t begin = 0, end = 0;
  for (const Token& token : tokenizer.tokenize(text)) {
    if (token.begin < begin || token.end < end || token.end <= token.begin) std::abort();
    if (token.id < 0 || token.id >= tokenizer.vocabulary().size()) std::abort();
    begin = token.begin;
    end = token.end;
  }
  if (end > static_cast<int32_t>(text.size())) std::abort();
  const size_t half = text.size() / 2;
  const Encoding encoding = encode_pair(tokenizer, text.substr(0, half), text.substr(half), {.max_tokens = 12});
  if (encoding.ids.size() != 12 || encoding.num_tokens > 12) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  static const Vocabulary vocabulary(
      special + "a\n##a\nab\n##bc\ne\n##e\n[\n]\n\xE6\x9D\xB1\n\xE1\x84\x92\n##\xE1\x85\xA1\n", "vocab");
  static const WordPiece uncased(vocabulary, "vocab", true), cased(vocabulary, "vocab", false);
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_tokens(uncased, text);
  check_tokens(cased, text);
  try {
    check_tokens(WordPiece(Vocabulary(special + text, "fuzz"), "fuzz"), text);
    check_tokens(WordPiece(Vocabulary(text, "fuzz"), "fuzz"), text);
  } catch (const std::invalid_argument& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
