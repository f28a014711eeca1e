#include "millrace/data/text/wordpiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/data/text/unicode.h"

namespace millrace::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::string data_file(const std::string& name) { return std::string(MILLRACE_SOURCE_DIR) + "/tests/data/text/" + name; }

WordPiece tokenizer(bool lower_case) { return WordPiece::load(data_file("vocab.txt"), lower_case); }

// A vocabulary of the special tokens, ids 0 to 4, and these.
WordPiece tokenizer_of(const std::string& tokens, bool lower_case = true) {
  return WordPiece(Vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + tokens, "vocab"), "vocab", lower_case);
}

std::vector<int32_t> ids_of(const std::vector<Token>& tokens) {
  std::vector<int32_t> ids;
  for (const Token& token : tokens) ids.push_back(token.id);
  return ids;
}

std::vector<std::pair<int32_t, int32_t>> ranges_of(const std::vector<Token>& tokens) {
  std::vector<std::pair<int32_t, int32_t>> ranges;
  for (const Token& token : tokens) ranges.emplace_back(token.begin, token.end);
  return ranges;
}

// Characters of a combining class that are no nonspacing marks change places with marks around them. Hugging Face then
// gives them the bytes of the mark they changed places with; ours keep their own.
bool has_moving_chars(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text, at);
    if (combining_class(c.value) != 0 && !is_mark(c.value)) return true;
    at += static_cast<size_t>(c.bytes);
  }
  return false;
}

class WordPieceGolden : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(data_file("wordpiece_golden.json"));
    golden_ = json::parse(file);
  }

  // How many strings had offsets to compare.
  int compare(bool lower_case) {
    const WordPiece wordpiece = tokenizer(lower_case);
    int with_offsets = 0;
    for (const json& entry : golden_["texts"]) {
      const auto text = entry["text"].get<std::string>();
      const json& expected = entry[lower_case ? "uncased" : "cased"];
      const std::vector<Token> tokens = wordpiece.tokenize(text);
      EXPECT_EQ(json(ids_of(tokens)), expected["ids"]) << entry["text"];
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(wordpiece.vocabulary().token(tokens[i].id), expected["tokens"].at(i).get<std::string>());
      }
      if (has_moving_chars(text)) continue;
      ++with_offsets;
      EXPECT_EQ(json(ranges_of(tokens)), expected["offsets"]) << entry["text"];
    }
    return with_offsets;
  }

  json golden_;
};

TEST_F(WordPieceGolden, UncasedTextsAreTokenizedAsByHuggingFace) { EXPECT_GE(compare(true), 100); }

TEST_F(WordPieceGolden, CasedTextsAreTokenizedAsByHuggingFace) { EXPECT_GE(compare(false), 100); }

TEST(WordPiece, LongestPieceWins) {
  const WordPiece wordpiece = tokenizer_of("un\nunder\n##stand\n##der\n##s\n");
  EXPECT_THAT(ids_of(wordpiece.tokenize("understand under unders")), ElementsAre(6, 7, 6, 6, 9));
}

TEST(WordPiece, AWordThatCannotBeSpeltIsUnknownAsAWhole) {
  const WordPiece wordpiece = tokenizer_of("good\n##y\n");
  EXPECT_EQ(wordpiece.tokenize("good goodyz good"), (std::vector<Token>{{5, 0, 4}, {1, 5, 11}, {5, 12, 16}}));
}

TEST(WordPiece, LongWordsBecomeUnknown) {
  const WordPiece wordpiece = tokenizer_of("x\n##x\n");
  EXPECT_EQ(wordpiece.tokenize(std::string(100, 'x')).size(), 100u);
  EXPECT_EQ(wordpiece.tokenize(std::string(101, 'x')), (std::vector<Token>{{1, 0, 101}}));
}

TEST(WordPiece, LengthOfAWordIsCountedAfterNormalizing) {
  const WordPiece wordpiece = tokenizer_of("e\n##e\n");
  std::string word;
  for (int i = 0; i < 100; ++i) word += "e\xCC\x81";  // U+0301 is dropped
  EXPECT_EQ(wordpiece.tokenize(word).size(), 100u);
}

TEST(WordPiece, SpecialTokensInTheTextAreTakenLiterally) {
  const WordPiece wordpiece = tokenizer_of("a\nb\nmask\n[\n]\n");
  EXPECT_EQ(wordpiece.tokenize("a[MASK]b"), (std::vector<Token>{{5, 0, 1}, {4, 1, 7}, {6, 7, 8}}));
  EXPECT_THAT(ids_of(wordpiece.tokenize("[mask] [MASK")), ElementsAre(8, 7, 9, 8, 7));
}

TEST(WordPiece, AVocabularyNeedsNoMask) {
  const WordPiece wordpiece(Vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[\nmask\n]\n", "vocab"), "vocab");
  EXPECT_EQ(wordpiece.special().mask, -1);
  EXPECT_THAT(ids_of(wordpiece.tokenize("[MASK]")), ElementsAre(4, 5, 6));
}

TEST(WordPiece, InvalidUtf8IsDropped) {
  const WordPiece wordpiece = tokenizer_of("ab\n##c\n");
  EXPECT_EQ(wordpiece.tokenize("\xFF"), std::vector<Token>{});
  EXPECT_EQ(wordpiece.tokenize("a\xC3"
                               "b"),
            (std::vector<Token>{{5, 0, 3}}));
  EXPECT_EQ(wordpiece.tokenize("ab\xF0\x9F\x98"), (std::vector<Token>{{5, 0, 2}}));
  EXPECT_EQ(wordpiece.tokenize("ab\xED\xA0\x80"
                               "c"),
            (std::vector<Token>{{5, 0, 2}, {6, 5, 6}}));  // a surrogate
  EXPECT_EQ(wordpiece.tokenize("\xC0\x80"
                               "ab"),
            (std::vector<Token>{{5, 2, 4}}));  // overlong
}

TEST(WordPiece, TokensThatShareACharacterShareItsBytes) {
  // U+D55C is one syllable of three letters.
  const WordPiece wordpiece = tokenizer_of("\xE1\x84\x92\n##\xE1\x85\xA1\n##\xE1\x86\xAB\n");
  EXPECT_EQ(wordpiece.tokenize("\xED\x95\x9C"), (std::vector<Token>{{5, 0, 3}, {6, 0, 3}, {7, 0, 3}}));
}

TEST(WordPiece, AppendsToWhatIsThere) {
  std::vector<Token> tokens{{3, 0, 0}};
  tokenizer_of("a\n").tokenize("a", tokens);
  EXPECT_THAT(ids_of(tokens), ElementsAre(3, 5));
}

void expect_sound(const WordPiece& wordpiece, const std::string& text) {
  const std::vector<Token> tokens = wordpiece.tokenize(text);
  int32_t begin = 0, end = 0;
  for (const Token& token : tokens) {
    ASSERT_LT(token.begin, token.end);
    ASSERT_LE(token.end, static_cast<int32_t>(text.size()));
    ASSERT_GE(token.begin, begin);
    ASSERT_GE(token.end, end);
    ASSERT_GE(token.id, 0);
    ASSERT_LT(token.id, wordpiece.vocabulary().size());
    begin = token.begin;
    end = token.end;
  }
}

TEST(WordPiece, RandomBytesGiveRangesInOrder) {
  const WordPiece uncased = tokenizer(true), cased = tokenizer(false);
  for (uint64_t i = 0; i < 10000; ++i) {
    const RandomStream random(1, 2, i);
    std::string text(random.at(0)[0] % 64, '\0');
    for (size_t k = 0; k < text.size(); ++k) text[k] = static_cast<char>(random.at(k + 1)[0]);
    expect_sound(uncased, text);
    expect_sound(cased, text);
  }
}

TEST(WordPiece, RandomCharactersGiveRangesInOrder) {
  const WordPiece uncased = tokenizer(true), cased = tokenizer(false);
  for (uint64_t i = 0; i < 10000; ++i) {
    const RandomStream random(3, 4, i);
    std::string text;
    for (size_t k = 0; k < random.at(0)[0] % 32; ++k) {
      const RandomBlock words = random.at(k + 1);
      // All planes, the first of them, marks, hangul, ASCII.
      const uint32_t bounds[][2] = {{0, 0x110000}, {0, 0x3200}, {0x300, 0x70}, {0xAC00, 0x2BA4}, {0, 0x80}};
      const auto& [first, count] = bounds[words[0] % 5];
      const uint32_t c = first + words[1] % count;
      if (c < 0xD800 || c > 0xDFFF) append_utf8(c, text);
    }
    expect_sound(uncased, text);
    expect_sound(cased, text);
  }
}

}  // namespace
}  // namespace millrace::data
