#include "millrace/data/text/encoding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace millrace::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::string data_file(const std::string& name) { return std::string(MILLRACE_SOURCE_DIR) + "/tests/data/text/" + name; }

// A vocabulary of the special tokens, ids 0 to 4, and these.
WordPiece tokenizer_of(const std::string& tokens, bool lower_case = true) {
  return WordPiece(Vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + tokens, "vocab"), "vocab", lower_case);
}

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

class EncodingGolden : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(data_file("wordpiece_golden.json"));
    golden_ = json::parse(file);
  }

  json golden_;
};

TEST_F(EncodingGolden, TextsAreCutAndPaddedAsByHuggingFace) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  for (const json& entry : golden_["singles"]) {
    const Encoding encoding =
        encode(wordpiece, entry["text"].get<std::string>(), {.max_tokens = entry["max"].get<int32_t>()});
    EXPECT_EQ(json(encoding.ids), entry["ids"]) << entry;
    EXPECT_EQ(json(encoding.segments), entry["segments"]) << entry;
    EXPECT_EQ(encoding.num_tokens, entry["mask"].get<json::array_t>().size() -
                                       static_cast<size_t>(std::count(entry["mask"].begin(), entry["mask"].end(), 0)));
  }
}

TEST_F(EncodingGolden, PairsAreCutAndPaddedAsByHuggingFace) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  for (const json& entry : golden_["pairs"]) {
    const Encoding encoding = encode_pair(wordpiece, entry["a"].get<std::string>(), entry["b"].get<std::string>(),
                                          {.max_tokens = entry["max"].get<int32_t>()});
    EXPECT_EQ(json(encoding.ids), entry["ids"]) << entry;
    EXPECT_EQ(json(encoding.segments), entry["segments"]) << entry;
  }
}

TEST(Encoding, WithoutPaddingEndsWithItsText) {
  const WordPiece wordpiece = tokenizer_of("a\nb\n");
  const Encoding encoding = encode_pair(wordpiece, "a", "b a", {.max_tokens = 10, .pad = false});
  EXPECT_THAT(encoding.ids, ElementsAre(2, 5, 3, 6, 5, 3));
  EXPECT_THAT(encoding.segments, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_EQ(encoding.num_tokens, 6);
  EXPECT_EQ(encoding.tokens, (std::vector<Token>{{2, 0, 0}, {5, 0, 1}, {3, 0, 0}, {6, 0, 1}, {5, 2, 3}, {3, 0, 0}}));
}

TEST(Encoding, TheLongerTextIsCutFirst) {
  EXPECT_EQ(longest_first(2, 9, 7), std::pair(int64_t{2}, int64_t{5}));
  EXPECT_EQ(longest_first(9, 2, 7), std::pair(int64_t{5}, int64_t{2}));
  EXPECT_EQ(longest_first(9, 9, 7), std::pair(int64_t{3}, int64_t{4}));
  EXPECT_EQ(longest_first(9, 8, 7), std::pair(int64_t{4}, int64_t{3}));
  EXPECT_EQ(longest_first(3, 4, 7), std::pair(int64_t{3}, int64_t{4}));
}

TEST(Encoding, NeedsRoomForItsSpecialTokens) {
  const WordPiece wordpiece = tokenizer_of("a\n");
  EXPECT_THAT(encode(wordpiece, "a", {.max_tokens = 2}).ids, ElementsAre(2, 3));
  EXPECT_EQ(message_of([&] { encode(wordpiece, "a", {.max_tokens = 1}); }),
            "max_tokens 1 leaves no room for [CLS] and [SEP]; write at least 2");
  EXPECT_EQ(message_of([&] { encode_pair(wordpiece, "a", "a", {.max_tokens = 2}); }),
            "max_tokens 2 leaves no room for [CLS] and [SEP]; write at least 3");
}

}  // namespace
}  // namespace millrace::data
