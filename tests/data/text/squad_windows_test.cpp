#include "millrace/data/text/squad_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/base/random.h"

namespace millrace::data {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string data_file(const std::string& name) { return std::string(MILLRACE_SOURCE_DIR) + "/tests/data/text/" + name; }

std::vector<int32_t> ids_of(const SquadWindows& set, const SquadWindow& window) {
  std::vector<int32_t> ids(static_cast<size_t>(set.options().max_tokens)), segments(ids.size());
  set.fill(window, ids, segments);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    EXPECT_EQ(segments[i], at >= window.context_at && at < window.num_tokens() ? 1 : 0);
    EXPECT_TRUE(at < window.num_tokens() || ids[i] == 0);
  }
  ids.resize(static_cast<size_t>(window.num_tokens()));
  return ids;
}

TEST(SquadWindows, AreCutAsByHuggingFace) {
  std::ifstream file(data_file("wordpiece_golden.json"));
  const json golden = json::parse(file);
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  for (const json& entry : golden["windows"]) {
    const auto context = golden["context"].get<std::string>();
    const SquadFile questions{{context}, {{"q", entry["question"].get<std::string>(), 0, {{context.substr(0, 3), 0}}}}};
    // The question's own limit is checked beside the stride before its length is known; here both just fit.
    const auto question_tokens = static_cast<int32_t>(wordpiece.tokenize(questions.questions[0].text).size());
    const SquadWindows set(questions, wordpiece,
                           {.max_tokens = entry["max"].get<int32_t>(),
                            .doc_stride = entry["stride"].get<int32_t>(),
                            .max_question_tokens = question_tokens});
    json ids = json::array();
    for (const SquadWindow& window : set.windows()) ids.push_back(ids_of(set, window));
    EXPECT_EQ(ids, entry["windows"]) << entry["question"];
  }
}

// Contexts of words in many scripts, decomposed and composed, with an answer of a few whole words each.
SquadFile generated(int64_t count) {
  const std::vector<std::string> words{"the",
                                       "Broncos",
                                       "caf\xC3\xA9",
                                       "cafe\xCC\x81",
                                       "\xE6\x9D\xB1\xE4\xBA\xAC",
                                       "\xED\x95\x9C\xEA\xB5\xAD",
                                       "\xF0\x9F\x98\x80",
                                       "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",
                                       "\xE2\x9D\xA4\xEF\xB8\x8F",
                                       "24\xE2\x80\x93"
                                       "10",
                                       "\xC4\xB0stanbul",
                                       "Stra\xC3\x9F"
                                       "e",
                                       "\xCE\x9F\xCE\x94\xCE\x9F\xCE\xA3",
                                       "\xD7\xA9\xD6\xB8\xD7\x81\xD7\x9C\xD7\x95\xD7\x9D",
                                       "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87",
                                       "un\xE2\x80\x8Bplayable",
                                       "U.S.A.",
                                       "$5",
                                       "(AFC)"};
  SquadFile file;
  for (int64_t i = 0; i < count; ++i) {
    const RandomStream random(5, 6, static_cast<uint64_t>(i));
    const uint32_t length = 1 + random.at(0)[0] % 60;
    const uint32_t first = random.at(0)[1] % length, last = std::min(first + random.at(0)[2] % 4, length - 1);
    std::string context;
    SquadAnswer answer;
    size_t end = 0;
    for (uint32_t k = 0; k < length; ++k) {
      const RandomBlock draw = random.at(k + 1);
      if (k > 0) context += draw[1] % 8 == 0 ? "\xC2\xA0\n" : " ";
      if (k == first) answer.begin = context.size();
      context += words[draw[0] % words.size()];
      if (k == last) end = context.size();
    }
    answer.text = context.substr(answer.begin, end - answer.begin);
    file.questions.push_back({std::to_string(i), "Who won the game?", file.contexts.size(), {answer}});
    file.contexts.push_back(context);
  }
  return file;
}

TEST(SquadWindows, EveryAnswerIsReadBackByteForByte) {
  const SquadFile file = generated(500);
  for (const bool lower_case : {true, false}) {
    const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"), lower_case);
    const SquadWindows set(file, wordpiece, {.max_tokens = 120, .doc_stride = 60, .max_question_tokens = 10});
    std::vector<int> found(file.questions.size());
    for (const SquadWindow& window : set.windows()) {
      if (window.start == 0) continue;
      ++found[window.question];
      EXPECT_LE(window.start, window.end);
      EXPECT_EQ(set.span_text(window, window.start, window.end), file.questions[window.question].answers[0].text);
    }
    for (size_t i = 0; i < found.size(); ++i) EXPECT_GE(found[i], 1) << file.contexts[i];
  }
}

TEST(SquadWindows, CoverTheContextAndOverlapByTheStride) {
  const SquadFile file = generated(200);
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const SquadWindows set(file, wordpiece, {.max_tokens = 40, .doc_stride = 9, .max_question_tokens = 10});
  size_t at = 0;
  for (size_t question = 0; question < file.questions.size(); ++question) {
    int64_t covered = 0;
    const auto total = static_cast<int64_t>(wordpiece.tokenize(file.contexts[question]).size());
    for (bool first = true; at < set.windows().size() && set.windows()[at].question == question; ++at, first = false) {
      const SquadWindow& window = set.windows()[at];
      EXPECT_EQ(window.first, first ? 0 : covered - 9);
      EXPECT_LE(window.num_tokens(), 40);
      EXPECT_GT(window.first + window.num_context, covered);
      covered = window.first + window.num_context;
    }
    EXPECT_EQ(covered, total);
  }
  EXPECT_EQ(at, set.windows().size());
}

SquadFile one_question(const std::string& context, const std::string& answer, size_t begin) {
  return {{context}, {{"q", "who", 0, {{answer, begin}}}}};
}

TEST(SquadWindows, AnAnswerCutByTheWindowPointsToCls) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const SquadFile file = one_question("a b c d e f", "c d", 4);
  // Room for three tokens, one of them shared: a b c, c d e, e f.
  const SquadWindows set(file, wordpiece, {.max_tokens = 7, .doc_stride = 1, .max_question_tokens = 1});
  ASSERT_EQ(set.windows().size(), 3u);
  EXPECT_EQ(set.windows()[0].start, 0);
  EXPECT_EQ(set.windows()[0].end, 0);
  EXPECT_EQ(set.windows()[1].start, 3);
  EXPECT_EQ(set.windows()[1].end, 4);
  EXPECT_EQ(set.windows()[2].start, 0);
}

// run_qa's search, for answers that begin and end with tokens: from the window's first token forwards to the last that
// begins no later than the answer, from its last backwards to the first that ends no earlier.
TEST(SquadWindows, AnswersStandWhereRunQaPutsThem) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const std::string context = "The Denver Broncos won in unplayable embarrassment; a caf\xC3\xA9 was there, they say.";
  const std::vector<Token> tokens = wordpiece.tokenize(context);
  const auto total = static_cast<int64_t>(tokens.size());
  for (int64_t first = 0; first < total; ++first) {
    for (int64_t last = first; last < total; ++last) {
      const int32_t begin = tokens[static_cast<size_t>(first)].begin, end = tokens[static_cast<size_t>(last)].end;
      const SquadFile file =
          one_question(context, context.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                       static_cast<size_t>(begin));
      const SquadWindows set(file, wordpiece, {.max_tokens = 14, .doc_stride = 4, .max_question_tokens = 1});
      for (const SquadWindow& window : set.windows()) {
        const auto token = [&](int64_t at) {
          return tokens[static_cast<size_t>(window.first + at - window.context_at)];
        };
        int64_t start = window.context_at, stop = window.context_at + window.num_context - 1;
        if (token(start).begin > begin || token(stop).end < end) {
          start = stop = 0;
        } else {
          const int64_t limit = stop;
          while (start <= limit && token(start).begin <= begin) ++start;
          --start;
          while (stop >= window.context_at && token(stop).end >= end) --stop;
          ++stop;
        }
        EXPECT_EQ(window.start, start);
        EXPECT_EQ(window.end, stop);
      }
    }
  }
}

TEST(SquadWindows, AnAnswerWithinAWordTakesTheTokensThatHoldIt) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const SquadFile file = one_question("so unplayable now", "playab", 5);  // un ##play ##able
  const SquadWindows set(file, wordpiece, {});
  const SquadWindow& window = set.windows()[0];
  EXPECT_EQ(set.span_text(window, window.start, window.end), "playable");
}

TEST(SquadWindows, AContextWithoutTokensIsOneWindow) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const SquadFile file = one_question(" \n ", "\n", 1);
  const SquadWindows set(file, wordpiece, {});
  ASSERT_EQ(set.windows().size(), 1u);
  EXPECT_EQ(set.windows()[0].num_context, 0);
  EXPECT_EQ(set.windows()[0].start, 0);
}

TEST(SquadWindows, SpansOutsideTheContextAreEmpty) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const SquadFile file = one_question("the house", "house", 4);
  const SquadWindows set(file, wordpiece, {});
  const SquadWindow& window = set.windows()[0];  // [CLS] who [SEP] the house [SEP]
  EXPECT_EQ(set.span_text(window, 3, 4), "the house");
  EXPECT_EQ(set.span_text(window, 4, 3), "");
  EXPECT_EQ(set.span_text(window, 0, 0), "");
  EXPECT_EQ(set.span_text(window, 2, 4), "");
  EXPECT_EQ(set.span_text(window, 3, 5), "");
  EXPECT_EQ(set.span_text(window, -1, 100000), "");
}

TEST(SquadWindows, ALongQuestionLosesItsEnd) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  SquadFile file = one_question("the house", "house", 4);
  file.questions[0].text = "a b c d e f g h";
  const SquadWindows set(file, wordpiece, {.max_tokens = 20, .doc_stride = 2, .max_question_tokens = 3});
  EXPECT_EQ(set.windows()[0].context_at, 5);
  EXPECT_EQ(set.windows()[0].num_tokens(), 8);
}

TEST(SquadWindows, RefuseAStrideThatDoesNotAdvance) {
  const WordPiece wordpiece = WordPiece::load(data_file("vocab.txt"));
  const SquadFile file = one_question("the house", "house", 4);
  try {
    SquadWindows(file, wordpiece, {.max_tokens = 195, .doc_stride = 128, .max_question_tokens = 64});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("max_tokens 195 leaves 128 for the context beside a question of 64; that is not "
                          "more than the doc_stride of 128, so windows would not advance; write at least 196"));
  }
  EXPECT_NO_THROW(SquadWindows(file, wordpiece, {.max_tokens = 196}));
  EXPECT_THROW(SquadWindows(file, wordpiece, {.max_question_tokens = 0}), std::invalid_argument);
  EXPECT_THROW(SquadWindows(file, wordpiece, {.doc_stride = -1}), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::data
