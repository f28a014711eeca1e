#include "millrace/data/text/squad.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/data/bad_sample.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json question(const std::string& id, const std::string& answer, int64_t start) {
  return {{"id", id}, {"question", "Who?"}, {"answers", json::array({{{"text", answer}, {"answer_start", start}}})}};
}

std::string file_of(const std::string& context, const std::vector<json>& questions) {
  const json paragraph = {{"context", context}, {"qas", questions}};
  const json article = {{"title", "T"}, {"paragraphs", json::array({paragraph})}};
  const json root = {{"version", "1.1"}, {"data", json::array({article})}};
  return root.dump();
}

SquadFile parse(const std::string& text, SkipLog* skip = nullptr) { return parse_squad(text, "s.json", skip); }

std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const BadSample& error) {
    return std::string("BadSample: ") + error.what();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Squad, ReadsQuestionsOfAllParagraphs) {
  const SquadFile file = parse(R"({"data": [
    {"paragraphs": [{"context": "Ann met Bob.", "qas": [
       {"id": "1", "question": "Whom?", "answers": [{"text": "Bob", "answer_start": 8}, {"text": "Bob.", "answer_start": 8}]},
       {"id": "2", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}]}]},
    {"paragraphs": [{"context": "None.", "qas": []}, {"context": "It rains.", "qas": [
       {"id": "3", "question": "What?", "answers": [{"text": "rains", "answer_start": 3}]}]}]}]})");
  EXPECT_THAT(file.contexts, ElementsAre("Ann met Bob.", "None.", "It rains."));
  ASSERT_EQ(file.questions.size(), 3u);
  EXPECT_EQ(file.questions[0].answers.size(), 2u);
  EXPECT_EQ(file.questions[0].answers[1].text, "Bob.");
  EXPECT_EQ(file.questions[2].id, "3");
  EXPECT_EQ(file.questions[2].text, "What?");
  EXPECT_EQ(file.questions[2].paragraph, 2u);
  EXPECT_EQ(file.questions[2].answers[0].begin, 3u);
}

TEST(Squad, AnswersCountCharactersNotBytes) {
  const std::string context = "\xC3\xA9\xE6\x9D\xB1\xF0\x9F\x98\x80 x";  // 2, 3 and 4 bytes
  EXPECT_EQ(parse(file_of(context, {question("q", "x", 4)})).questions[0].answers[0].begin, 10u);
}

TEST(Squad, WhatIsNotSquadIsRefused) {
  EXPECT_THAT(message_of("{\n\n  nonsense"),
              HasSubstr("s.json:3: not JSON: something unexpected at byte 7 of 13; SQuAD"));
  EXPECT_THAT(message_of(""), HasSubstr("s.json:1: not JSON"));
  EXPECT_THAT(message_of("{\"data\": \"\xFF\"}"), HasSubstr("s.json:1: not JSON"));
  EXPECT_THAT(message_of("1e8888"), HasSubstr("s.json: not JSON that can be read: a number is too large"));
  EXPECT_THAT(message_of("[]"), HasSubstr("s.json: the file has no list \"data\"; SQuAD 1.1 is {\"data\""));
  EXPECT_THAT(message_of(R"({"data": [1]})"), HasSubstr("s.json: article 1 has no list \"paragraphs\""));
  EXPECT_THAT(message_of(R"({"data": [{"paragraphs": [{}]}]})"),
              HasSubstr("paragraph 1, counted over all articles, has no \"context\""));
  EXPECT_THAT(message_of(R"({"data": [{"paragraphs": [{"context": "c"}]}]})"), HasSubstr("has no list \"qas\""));
  EXPECT_EQ(message_of(R"({"data": []})"), "s.json: no question that can be used among 0");
}

TEST(Squad, ABadQuestionIsNamed) {
  const auto message = [](const json& question) { return message_of(file_of("a caf\xC3\xA9 x", {question})); };
  EXPECT_EQ(message(json::object()), "BadSample: s.json: question number 1 has no text \"id\"; write one");
  EXPECT_EQ(message({{"id", "q"}}), "BadSample: s.json: question \"q\" has no text \"question\"; write one");
  EXPECT_EQ(message({{"id", "q"}, {"question", "?"}}),
            "BadSample: s.json: question \"q\" has no list \"answers\"; write one");
  EXPECT_THAT(message({{"id", "q"}, {"question", "?"}, {"answers", json::array()}}),
              HasSubstr("question \"q\" has no answer"));
  EXPECT_THAT(message(question("q", "", 0)), HasSubstr("has an empty answer"));
  EXPECT_THAT(message(question("q", "a", -1)), HasSubstr("has -1 as answer_start; write a whole number"));
  json textual = question("q", "a", 0);
  textual["answers"][0]["answer_start"] = "0";
  EXPECT_THAT(message(textual), HasSubstr("has a string as answer_start; write a whole number"));
  textual["answers"][0].erase("answer_start");
  EXPECT_THAT(message(textual), HasSubstr("an answer without \"answer_start\""));
}

TEST(Squad, AnAnswerThatStandsElsewhereIsRefusedWithItsPlace) {
  const auto message = [](const std::string& answer, int64_t start) {
    return message_of(file_of("a caf\xC3\xA9 x", {question("q", answer, start)}));
  };
  EXPECT_EQ(message("x", 7), "no error");
  EXPECT_EQ(message("x", 8),
            "BadSample: s.json: question \"q\" has answer \"x\", which does not stand at character 8 of "
            "its context; write 7 (characters count, not bytes)");
  EXPECT_THAT(message("y", 0), HasSubstr("it stands nowhere in it: correct the text"));
  EXPECT_THAT(message("x", int64_t{1} << 40), HasSubstr("write 7"));
  EXPECT_THAT(message("x and more", 7), HasSubstr("it stands nowhere"));
}

TEST(Squad, SkippedQuestionsAreLoggedAndLeftOut) {
  SkipLog skip;
  const SquadFile file = parse(file_of("one two", {question("q1", "two", 0), question("q2", "two", 4)}), &skip);
  ASSERT_EQ(file.questions.size(), 1u);
  EXPECT_EQ(file.questions[0].id, "q2");
  EXPECT_THAT(skip.reasons(), ElementsAre(HasSubstr("question \"q1\" has answer \"two\"")));
  EXPECT_THROW(parse(file_of("one two", {question("q1", "two", 0)}), &skip), std::invalid_argument);
}

TEST(Squad, DeepNestingIsOnlyRefused) {
  std::string text(100000, '[');
  text += std::string(100000, ']');
  EXPECT_THAT(message_of(text), HasSubstr("no list \"data\""));
}

class SquadOnDisk : public state::TemporaryFolder {};

TEST_F(SquadOnDisk, IsReadWhole) {
  write_bytes(path("dev.json"), file_of("one two", {question("q", "two", 4)}));
  EXPECT_EQ(read_squad(path("dev.json"), nullptr).questions[0].id, "q");
  EXPECT_THROW(read_squad(path("none.json"), nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::data
