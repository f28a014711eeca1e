// Text as BERT's vocabulary knows it, character by character, each with the bytes of the original it came from.
// In this order, as Hugging Face's BertNormalizer: drop control characters, turn every space into ' ', set
// ideographs apart, and - with lower case - decompose (NFD), drop nonspacing marks, lower-case.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::data {

enum class CharKind : uint8_t { Space, Punctuation, Word };

struct NormalizedChar {
  int32_t at = 0;              // where it begins in NormalizedText::bytes
  int32_t begin = 0, end = 0;  // bytes of the original; characters decomposed from one share its range
  CharKind kind = CharKind::Word;
};

struct NormalizedText {
  std::string bytes;  // UTF-8
  std::vector<NormalizedChar> chars;

  // The characters [first, last) as UTF-8.
  std::string_view slice(size_t first, size_t last) const {
    const auto begin = static_cast<size_t>(chars[first].at);
    const auto end = last < chars.size() ? static_cast<size_t>(chars[last].at) : bytes.size();
    return std::string_view(bytes).substr(begin, end - begin);
  }
};

// Replaces `out` by the bytes [begin, end) of the text; ranges count from the beginning of `text`, which is shorter
// than 2 GiB. Ranges never go backwards, and no character's range is empty but that of a space set beside an ideograph.
void normalize(std::string_view text, size_t begin, size_t end, bool lower_case, NormalizedText& out);

}  // namespace millrace::data
