// Answers and figures against a program that restates Hugging Face's search and the official evaluation.
#include "millrace/data/squad_scorer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "millrace/base/random.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using nlohmann::json;

constexpr int32_t kMaxAnswer = 5;
constexpr SquadWindowOptions kOptions{.max_tokens = 64, .doc_stride = 6, .max_question_tokens = 8};

std::string text_file(const std::string& name) { return std::string(MILLRACE_SOURCE_DIR) + "/tests/data/text/" + name; }

// Contexts of words, punctuation and several scripts, each with up to three answers of a few words.
SquadFile generated(uint64_t count) {
  const std::vector<std::string> words{"the",
                                       "Broncos",
                                       "a",
                                       "caf\xC3\xA9",
                                       "\xE6\x9D\xB1\xE4\xBA\xAC",
                                       "unplayable",
                                       "24\xE2\x80\x93"
                                       "10",
                                       "U.S.A.",
                                       "$5",
                                       "(AFC),",
                                       "an",
                                       "Denver",
                                       "\xD0\x94\xD0\xBE\xD0\xBC",
                                       "it's",
                                       "game",
                                       "the",
                                       "won",
                                       "by",
                                       "points"};
  SquadFile file;
  for (uint64_t i = 0; i < count; ++i) {
    const RandomStream random(11, 12, i);
    const uint32_t length = 1 + random.at(0)[0] % 70;
    std::string context;
    std::vector<size_t> begins, ends;
    for (uint32_t k = 0; k < length; ++k) {
      if (k > 0) context += random.at(k + 1)[1] % 9 == 0 ? "\n" : " ";
      begins.push_back(context.size());
      context += words[random.at(k + 1)[0] % words.size()];
      ends.push_back(context.size());
    }
    SquadQuestion question{"q" + std::to_string(i), "who won the game?", i, {}};
    for (uint32_t k = 0; k < 1 + random.at(0)[1] % 3; ++k) {
      const RandomBlock draw = random.at(1000 + k);
      const size_t first = draw[0] % length, last = std::min<size_t>(first + draw[1] % 3, length - 1);
      question.answers.push_back({context.substr(begins[first], ends[last] - begins[first]), begins[first]});
    }
    file.contexts.push_back(context);
    file.questions.push_back(question);
  }
  return file;
}

// Multiples of 2^-12, so that float and double add them to the same sum. Half of the windows are drawn to the answer;
// of some all large starts come after all large ends; padding has the largest of all.
std::vector<float> drawn_logits(const SquadWindow& window, uint64_t sample) {
  const auto length = static_cast<size_t>(kOptions.max_tokens);
  const RandomStream random(21, 22, sample);
  std::vector<float> logits(2 * length, 0.0f);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(static_cast<int>(random.at(i + 1)[0] % 32768) - 16384) / 4096;
    if (i % length >= static_cast<size_t>(window.num_tokens())) logits[i] += 50;
    if (sample % 7 == 0 && (i % length >= length / 2) == (i < length)) logits[i] += 20;
  }
  if (random.at(0)[0] % 2 == 0) {
    logits[static_cast<size_t>(window.start)] += 6;
    logits[length + static_cast<size_t>(window.end)] += 6;
  }
  return logits;
}

class SquadScoring : public state::TemporaryFolder {};

TEST_F(SquadScoring, AgreesWithAnIndependentProgram) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "needs /usr/bin/python3";
  const SquadFile file = generated(300);
  const WordPiece tokenizer = WordPiece::load(text_file("vocab.txt"));
  const SquadWindows windows(file, tokenizer, kOptions);
  const SquadScorer scorer(file, windows, kMaxAnswer);

  json asked{{"max_answer", kMaxAnswer}, {"questions", json::array()}};
  for (const SquadQuestion& question : file.questions) {
    json answers = json::array();
    for (const SquadAnswer& answer : question.answers) answers.push_back(answer.text);
    asked["questions"].push_back({{"id", question.id},
                                  {"context", file.contexts[question.paragraph]},
                                  {"answers", answers},
                                  {"windows", json::array()}});
  }
  std::vector<float> numbers;
  size_t without_answer = 0;
  for (size_t i = 0; i < windows.windows().size(); ++i) {
    const SquadWindow& window = windows.windows()[i];
    const std::vector<float> logits = drawn_logits(window, i);
    numbers.resize(4 * (i + 1));
    scorer.score(static_cast<int64_t>(i), logits, std::span(numbers).last(4));
    if (numbers.back() == 0) ++without_answer;
    json offsets = json::array();
    const std::vector<Token> tokens = tokenizer.tokenize(file.contexts[file.questions[window.question].paragraph]);
    for (int32_t k = 0; k < window.num_context; ++k) {
      const Token& token = tokens[static_cast<size_t>(window.first + k)];
      offsets.push_back({token.begin, token.end});
    }
    const auto starts = logits.begin(), ends = logits.begin() + kOptions.max_tokens;
    asked["questions"][window.question]["windows"].push_back(
        {{"context_at", window.context_at},
         {"offsets", offsets},
         {"starts", std::vector<float>(starts, starts + window.num_tokens())},
         {"ends", std::vector<float>(ends, ends + window.num_tokens())}});
  }
  EXPECT_GT(windows.windows().size(), 400u) << "most contexts should have several";
  EXPECT_GT(without_answer, 0u) << "of some, no pair of large logits fits";

  write_bytes(path("questions.json"), asked.dump());
  const std::string script = text_file("squad_independent.py");
  const int status = std::system(
      ("/usr/bin/python3 -B " + script + " " + path("questions.json") + " " + path("answers.json")).c_str());
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const json expected = json::parse(read_bytes(path("answers.json")));

  const json predictions = json::parse(scorer.predictions_json(numbers));
  ASSERT_EQ(predictions.size(), 300u);
  for (const auto& [id, text] : expected["predictions"].items()) EXPECT_EQ(predictions[id], text) << id;
  const std::vector<double> figures = scorer.figures(numbers);
  EXPECT_NEAR(figures[0], expected["exact_match"].get<double>(), 1e-9);
  EXPECT_NEAR(figures[1], expected["f1"].get<double>(), 1e-9);
  EXPECT_GT(figures[0], 20);
  EXPECT_LT(figures[0], 80);
  EXPECT_GT(figures[1], figures[0]);
}

}  // namespace
}  // namespace millrace::data
