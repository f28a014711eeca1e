#include "millrace/data/text/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace::data {
namespace {

TEST(Unicode, CharactersAreCountedFromTheFirst) {
  const std::string text = "a\xC3\xA9\xE6\x9D\xB1";
  EXPECT_EQ(byte_of_char(text, 0), 0u);
  EXPECT_EQ(byte_of_char(text, 2), 3u);
  EXPECT_EQ(byte_of_char(text, 3), text.size());
  EXPECT_EQ(byte_of_char(text, 4), std::string_view::npos);
  EXPECT_EQ(byte_of_char("", 0), 0u);
}

TEST(Unicode, InvalidBytesAreReplacementCharactersOneByOne) {
  for (const char* text : {"\x80", "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    const DecodedChar c = decode_utf8(text, 0);
    EXPECT_EQ(c.value, kReplacement);
    EXPECT_EQ(c.bytes, 1);
  }
}

}  // namespace
}  // namespace millrace::data
