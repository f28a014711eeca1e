// What the tokenizer has to know about characters, frozen to what Hugging Face's `tokenizers` knows: a model was
// trained on its tokens, so a character must not change its kind because a newer Unicode library is installed. The
// categories come from unicode_ranges.h; only decomposition, combining classes and lower case, which Unicode never
// changes once a character has them, are left to utf8proc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::data {

constexpr char32_t kReplacement = 0xFFFD;

struct DecodedChar {
  char32_t value = kReplacement;
  int bytes = 1;
};

// The character that begins at byte `at` < text.size(). A byte that begins no valid UTF-8 is one U+FFFD.
DecodedChar decode_utf8(std::string_view text, size_t at);
void append_utf8(char32_t c, std::string& text);

// The byte at which the n-th character begins, text.size() for the one past the last, npos for those after it.
size_t byte_of_char(std::string_view text, uint64_t n);

// Dropped before anything else: U+0000, U+FFFD, and the categories Cc, Cf and Co but for tab and line ends.
bool is_dropped(char32_t c);
bool is_space(char32_t c);
bool is_punctuation(char32_t c);  // all of ASCII's that is no letter, digit or space, and the categories P*
bool is_mark(char32_t c);         // nonspacing: the category Mn
bool is_cjk(char32_t c);          // an ideograph, which is a word of its own; not kana, not hangul

// One character to one. The only character with two in lower case, U+0130, decomposes and so never gets here.
char32_t to_lower(char32_t c);

// Full canonical decomposition, not yet in canonical order; the number of characters, at most 4.
int decompose(char32_t c, std::array<char32_t, 4>& parts);
int combining_class(char32_t c);

}  // namespace millrace::data
