#include "millrace/data/text/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "millrace/data/text/wordpiece.h"

namespace millrace::data {
namespace {

using testing::HasSubstr;

std::string data_file(const std::string& name) { return std::string(MILLRACE_SOURCE_DIR) + "/tests/data/text/" + name; }

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Vocabulary, FindsEveryTokenAndNoOther) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const Vocabulary& vocabulary = wordpiece.vocabulary();
  ASSERT_GT(vocabulary.size(), 2000);
  for (int32_t id = 0; id < vocabulary.size(); ++id) EXPECT_EQ(vocabulary.find(vocabulary.token(id)), id);
  EXPECT_EQ(vocabulary.find(""), -1);
  EXPECT_EQ(vocabulary.find("no such token"), -1);
}

TEST(Vocabulary, LineEndsAreNotPartOfTokens) {
  const Vocabulary vocabulary("\xEF\xBB\xBFone\r\ntwo\r\n\r\nfour", "vocab");
  EXPECT_EQ(vocabulary.size(), 4);
  EXPECT_EQ(vocabulary.find("one"), 0);
  EXPECT_EQ(vocabulary.find("two"), 1);
  EXPECT_EQ(vocabulary.find("four"), 3);
}

TEST(Vocabulary, TheLaterOfTwoEqualLinesCounts) { EXPECT_EQ(Vocabulary("a\nb\na\n", "vocab").find("a"), 2); }

TEST(Vocabulary, WhatIsMissingIsNamed) {
  EXPECT_EQ(message_of([] { Vocabulary("", "v.txt"); }), "v.txt: an empty vocabulary; it has one token per line");
  EXPECT_EQ(message_of([] { WordPiece(Vocabulary("[PAD]\n[UNK]\n[SEP]\n", "v.txt"), "v.txt"); }),
            "v.txt: no [CLS] among 3 tokens; a BERT vocabulary has [PAD], [UNK], [CLS] and [SEP], each on its line");
  EXPECT_THAT(message_of([] { WordPiece::load("/no/such/vocab.txt"); }), HasSubstr("/no/such/vocab.txt: no such file"));
}

}  // namespace
}  // namespace millrace::data
