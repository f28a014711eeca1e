#include "millrace/data/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cassert>
#include <iterator>

#include "millrace/data/text/unicode_ranges.h"

namespace millrace::data {

namespace {

template <size_t N>
bool is_in(const CharRange (&ranges)[N], char32_t c) {
  const auto* after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                       [](char32_t value, const CharRange& range) { return value < range.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

bool is_between(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

}  // namespace

DecodedChar decode_utf8(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t value = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  const auto length =
      utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - at, 4)), &value);
  if (length <= 0 || value < 0) return {};
  return {static_cast<char32_t>(value), static_cast<int>(length)};
}

void append_utf8(char32_t c, std::string& text) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

size_t byte_of_char(std::string_view text, uint64_t n) {
  size_t at = 0;
  for (; n > 0 && at < text.size(); --n) at += static_cast<size_t>(decode_utf8(text, at).bytes);
  return n == 0 ? at : std::string_view::npos;
}

bool is_dropped(char32_t c) { return is_in(kDropped, c); }

bool is_space(char32_t c) {
  return c == ' ' || is_between(c, 0x09, 0x0D) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         is_between(c, 0x2000, 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_punctuation(char32_t c) { return is_in(kPunctuation, c); }

bool is_mark(char32_t c) { return c >= 0x300 && is_in(kMarks, c); }

bool is_cjk(char32_t c) {
  return is_between(c, 0x4E00, 0x9FFF) || is_between(c, 0x3400, 0x4DBF) || is_between(c, 0x20000, 0x2A6DF) ||
         is_between(c, 0x2A700, 0x2B81F) || is_between(c, 0x2B920, 0x2CEAF) || is_between(c, 0xF900, 0xFAFF) ||
         is_between(c, 0x2F800, 0x2FA1F);
}

char32_t to_lower(char32_t c) {
  const auto lower = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  if (lower != c) return lower;
  // Capitals of Unicode 16 and 17, which Hugging Face knows and utf8proc may not yet.
  if (is_between(c, 0x10D50, 0x10D65)) return c + 0x20;
  if (is_between(c, 0x16EA0, 0x16EB8)) return c + 0x1B;
  switch (c) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA: return c + 1;
    case 0xA7CB: return 0x264;
    case 0xA7DC: return 0x19B;
    default: return c;
  }
}

int decompose(char32_t c, std::array<char32_t, 4>& parts) {
  parts[0] = c;
  // Letters younger than Unicode 9, whose decompositions Hugging Face does not know.
  if (c == 0x105C9 || c == 0x105E4 || is_between(c, 0x11383, 0x113C8) || c == 0x11938 ||
      is_between(c, 0x16121, 0x16128) || is_between(c, 0x16D68, 0x16D6A)) {
    return 1;
  }
  utf8proc_int32_t buffer[8];
  int boundary_class = 0;
  const auto length = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, std::size(buffer),
                                              UTF8PROC_DECOMPOSE, &boundary_class);
  assert(length <= 4);
  if (length < 1 || length > 4) return 1;
  for (int i = 0; i < length; ++i) parts[static_cast<size_t>(i)] = static_cast<char32_t>(buffer[i]);
  return static_cast<int>(length);
}

int combining_class(char32_t c) {
  if (!is_mark(c) && !is_in(kOrderedNoMarks, c)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

}  // namespace millrace::data
