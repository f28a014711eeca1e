#include "millrace/data/text/squad_metric.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::data {
namespace {

// Expected values are those of the official script's functions, run under Python 3.11.
TEST(SquadMetric, AnswersAreNormalizedAsByTheOfficialScript) {
  EXPECT_EQ(normalize_answer("The  Denver\tBroncos!"), "denver broncos");
  EXPECT_EQ(normalize_answer("a an the"), "");
  EXPECT_EQ(normalize_answer("an-other theatre, A."), "another theatre");
  EXPECT_EQ(normalize_answer("U.S.A."), "usa");
  EXPECT_EQ(normalize_answer("the_end"), "theend");
  EXPECT_EQ(normalize_answer("24\xE2\x80\x93"
                             "10"),
            "24\xE2\x80\x93"
            "10");  // only ASCII punctuation goes
  EXPECT_EQ(normalize_answer("\xE2\x80\x9Cthe\xE2\x80\x9D"), "\xE2\x80\x9C \xE2\x80\x9D");  // quotes end a word
  EXPECT_EQ(normalize_answer("th\xC3\xA9 the\xCC\x81"), "th\xC3\xA9 \xCC\x81");             // a mark is no letter
  EXPECT_EQ(normalize_answer("\xCE\x9F\xCE\x94\xCE\x9F\xCE\xA3"), "\xCE\xBF\xCE\xB4\xCE\xBF\xCF\x82");  // final sigma
  EXPECT_EQ(normalize_answer("\xC4\xB0"), "i\xCC\x87");
  EXPECT_EQ(normalize_answer("a\xC2\xA0"
                             "b\xE3\x80\x80"
                             "c"),
            "b c");
}

TEST(SquadMetric, ExactMatchIgnoresArticlesCaseAndPunctuation) {
  EXPECT_TRUE(is_exact_match("the Broncos.", "broncos"));
  EXPECT_FALSE(is_exact_match("bronco", "broncos"));
  EXPECT_TRUE(is_exact_match("", "the"));
}

TEST(SquadMetric, F1CountsWordsInCommon) {
  EXPECT_DOUBLE_EQ(answer_f1("Denver Broncos", "the Denver Broncos"), 1.0);
  EXPECT_DOUBLE_EQ(answer_f1("Denver", "Denver Broncos"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(answer_f1("in the city of Denver", "Denver city"), 2 * 0.5 * 1.0 / 1.5);
  EXPECT_DOUBLE_EQ(answer_f1("x x y", "x x x"), 2.0 / 3);  // repeated words count as often as in both
  EXPECT_DOUBLE_EQ(answer_f1("moon", "sun"), 0.0);
  EXPECT_DOUBLE_EQ(answer_f1("the", "a"), 0.0);
}

TEST(SquadMetric, TheBestTruthCounts) {
  SquadMetric metric;
  const std::vector<SquadAnswer> truths{{"Denver Broncos", 0}, {"Broncos", 0}, {"The team from Denver", 0}};
  metric.add("the broncos", truths);
  EXPECT_DOUBLE_EQ(metric.exact_match(), 100.0);
  EXPECT_DOUBLE_EQ(metric.f1(), 100.0);
  metric.add("team Denver", truths);
  EXPECT_EQ(metric.count(), 2);
  EXPECT_DOUBLE_EQ(metric.exact_match(), 50.0);
  EXPECT_DOUBLE_EQ(metric.f1(), 50.0 * (1.0 + 0.8));
}

TEST(SquadMetric, UnansweredQuestionsCountAsWrong) {
  SquadMetric metric;
  EXPECT_DOUBLE_EQ(metric.f1(), 0.0);
  metric.add("", std::vector<SquadAnswer>{{"Denver", 0}});
  EXPECT_DOUBLE_EQ(metric.exact_match(), 0.0);
  EXPECT_EQ(metric.count(), 1);
}

}  // namespace
}  // namespace millrace::data
