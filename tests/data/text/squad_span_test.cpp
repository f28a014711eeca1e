#include "millrace/data/text/squad_span.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace millrace::data {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A window of [CLS] x [SEP], a context from 3 on, and [SEP].
AnswerSpan best(const std::vector<float>& starts, const std::vector<float>& ends, int32_t max_answer = 30) {
  return best_span(starts, ends, 3, static_cast<int32_t>(starts.size()) - 4, max_answer);
}

TEST(SquadSpan, TheLargestSumWins) {
  const AnswerSpan span = best({0, 0, 0, 1, 5, 2, 0, 0}, {0, 0, 0, 4, 0, 1, 3, 0});
  EXPECT_TRUE(span.found);
  EXPECT_EQ(span.start, 4);
  EXPECT_EQ(span.end, 6);
  EXPECT_EQ(span.score, 8);
}

TEST(SquadSpan, OnlyTheContextCounts) {
  const AnswerSpan span = best({9, 9, 9, 0, 1, 0, 0, 9}, {9, 9, 9, 0, 0, 1, 0, 9});
  EXPECT_EQ(span.start, 4);
  EXPECT_EQ(span.end, 5);
  EXPECT_EQ(span.score, 2);
}

TEST(SquadSpan, ASpanDoesNotEndBeforeItBegins) {
  const AnswerSpan span = best({0, 0, 0, 0, 0, 0, 9, 0}, {0, 0, 0, 8, 0, 0, 1, 0});
  EXPECT_EQ(span.start, 6);
  EXPECT_EQ(span.end, 6);
}

TEST(SquadSpan, ALongSpanGivesWay) {
  const std::vector<float> starts{0, 0, 0, 5, 0, 0, 0, 0}, ends{0, 0, 0, 0, 0, 0, 5, 0};
  EXPECT_EQ(best(starts, ends, 4).score, 10);
  const AnswerSpan shorter = best(starts, ends, 3);
  EXPECT_EQ(shorter.score, 5);
  EXPECT_LT(shorter.end - shorter.start, 3);
}

TEST(SquadSpan, OnlyTheTwentyLargestOfAWindowAreTried) {
  // 19 large ones before the context leave room for one; 20 leave none.
  for (const int large : {19, 20}) {
    std::vector<float> starts(30, 0.0f), ends(30, 0.0f);
    for (int i = 0; i < large; ++i) starts[static_cast<size_t>(i)] = 5;
    starts[25] = ends[26] = 1;
    const AnswerSpan span = best_span(starts, ends, 20, 9, 30);
    EXPECT_EQ(span.found, large == 19);
    if (span.found) {
      EXPECT_EQ(span.start, 25);
      EXPECT_EQ(span.end, 26);
    }
  }
}

TEST(SquadSpan, OfEqualsTheFirstCounts) {
  const std::vector<float> flat(8, 1.0f);
  const AnswerSpan span = best(flat, flat);
  EXPECT_EQ(span.start, 3);
  EXPECT_EQ(span.end, 3);
}

TEST(SquadSpan, WhatIsNoNumberIsNoAnswer) {
  const std::vector<float> none(8, kNaN);
  EXPECT_FALSE(best(none, none).found);
  std::vector<float> one(8, kNaN);
  one[5] = 1;
  EXPECT_EQ(best(one, one).start, 5);
  EXPECT_FALSE(best(std::vector<float>(8, kInfinity), std::vector<float>(8, -kInfinity)).found);
}

TEST(SquadSpan, AContextWithoutTokensHasNoAnswer) { EXPECT_FALSE(best({1, 1, 1, 1}, {1, 1, 1, 1}).found); }

}  // namespace
}  // namespace millrace::data
