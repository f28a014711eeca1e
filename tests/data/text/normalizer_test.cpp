#include "millrace/data/text/normalizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/data/text/unicode.h"

namespace millrace::data {
namespace {

std::string normalized(std::string_view text, bool lower_case) {
  NormalizedText out;
  normalize(text, 0, text.size(), lower_case, out);
  return out.bytes;
}

// A hash over all of Unicode: fails when an installed utf8proc decomposes or lower-cases otherwise.
TEST(Normalizer, EveryCharacterBecomesWhatHuggingFaceMakesOfIt) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/data/text/wordpiece_golden.json");
  const auto golden = nlohmann::json::parse(file);
  for (const bool lower_case : {true, false}) {
    uint32_t hash = 0x811C9DC5;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string text = "a";
      append_utf8(c, text);
      for (const char byte : normalized(text + "b", lower_case)) {
        hash = (hash ^ static_cast<uint8_t>(byte)) * 0x01000193u;
      }
    }
    EXPECT_EQ(hash, golden["every_char"][lower_case ? "uncased" : "cased"].get<uint32_t>());
  }
}

TEST(Normalizer, OnlyTheGivenBytesAreRead) {
  NormalizedText out;
  normalize(
      "ab\xC3\xA9"
      "cd",
      1, 3, true, out);  // ends within a character
  EXPECT_EQ(out.bytes, "b");
  ASSERT_EQ(out.chars.size(), 1u);
  EXPECT_EQ(out.chars[0].begin, 1);
  EXPECT_EQ(out.chars[0].end, 2);
}

TEST(Normalizer, CharactersKnowTheirKind) {
  NormalizedText out;
  normalize("a, \xE6\x9D\xB1", 0, 6, true, out);
  std::string kinds;
  for (const NormalizedChar& c : out.chars) kinds += "_.x"[static_cast<int>(c.kind)];
  EXPECT_EQ(kinds, "x.__x_");  // an ideograph stands between spaces
}

}  // namespace
}  // namespace millrace::data
