#include "millrace/data/squad_dataset.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/data/bad_sample.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kLength = 12;

class SquadData : public state::TemporaryFolder {
 protected:
  // One paragraph of the words w0 to w9, with a question for each answer.
  job::Job squad_job(const std::vector<json>& questions) {
    std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nwho\nwhere\n";
    for (int i = 0; i < 10; ++i) vocab += "w" + std::to_string(i) + "\n";  // ids from 6 on
    write_bytes(path("vocab.txt"), vocab);
    const json file{{"data", {{{"paragraphs", {{{"context", "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9"}, {"qas", questions}}}}}}}};
    write_bytes(path("train.json"), file.dump());
    job::Job job;
    job.model = {.name = "bert_base", .vocabulary = 16, .tokens = kLength, .head = job::Head::Span};
    job.data.kind = job::DataKind::Squad;
    job.data.train = job.data.test = path("train.json");
    job.data.vocab = path("vocab.txt");
    job.data.doc_stride = 3;
    job.data.max_question = 2;
    return job;
  }
  static json question(const std::string& id, const std::string& text, const std::vector<std::string>& answers) {
    json list = json::array();
    for (const std::string& answer : answers) {  // every word has three characters, with its space
      list.push_back({{"text", answer}, {"answer_start", 3 * (answer[1] - '0')}});
    }
    return {{"id", id}, {"question", text}, {"answers", list}};
  }
  struct Sample {
    std::vector<int32_t> ids, segments, labels;
  };
  static Sample read(const Dataset& dataset, int64_t sample) {
    std::vector<int32_t> planes(static_cast<size_t>(dataset.feature_bytes()) / sizeof(int32_t), 99);
    std::vector<int32_t> labels(static_cast<size_t>(dataset.label_elements()), 99);
    dataset.reader()->fill(std::vector<int64_t>{sample}, 0, reinterpret_cast<std::byte*>(planes.data()), labels.data());
    return {{planes.begin(), planes.begin() + kLength}, {planes.begin() + kLength, planes.end()}, labels};
  }
  // Logits of a window: 0 but for one start and one end.
  static std::vector<float> logits(int start, float start_logit, int end, float end_logit) {
    std::vector<float> values(2 * kLength, 0.0f);
    values[static_cast<size_t>(start)] = start_logit;
    values[static_cast<size_t>(kLength + end)] = end_logit;
    return values;
  }
  static double figure(const Scorer& scorer, const std::vector<float>& numbers, const std::string& name) {
    const std::vector<std::string> names = scorer.names();
    const std::vector<double> figures = scorer.figures(numbers);
    EXPECT_EQ(names.size(), figures.size());
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return figures[static_cast<size_t>(found - names.begin())];
    ADD_FAILURE() << name << " is missing";
    return -1;
  }
};

TEST_F(SquadData, ASampleIsAWindowWithTheAnswersTokens) {
  const auto dataset = make_dataset(squad_job({question("q", "who", {"w5 w6"})}), Split::Train);
  // 8 tokens of the context beside [CLS] who [SEP] and [SEP]; the next window begins 8 - 3 further.
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->feature_bytes(), 2 * kLength * 4);
  EXPECT_EQ(dataset->label_elements(), 2);
  const Sample first = read(*dataset, 0);
  EXPECT_THAT(first.ids, ElementsAre(2, 4, 3, 6, 7, 8, 9, 10, 11, 12, 13, 3));
  EXPECT_THAT(first.segments, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(first.labels, ElementsAre(8, 9));
  const Sample second = read(*dataset, 1);
  EXPECT_THAT(second.ids, ElementsAre(2, 4, 3, 11, 12, 13, 14, 15, 3, kNoToken, kNoToken, kNoToken));
  EXPECT_THAT(second.segments, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(second.labels, ElementsAre(3, 4));
}

TEST_F(SquadData, AWindowWithoutTheWholeAnswerPointsAtItsBeginning) {
  const auto dataset =
      make_dataset(squad_job({question("q", "who", {"w1"}), question("r", "where", {"w4 w5"})}), Split::Train);
  ASSERT_EQ(dataset->size(), 4);
  EXPECT_THAT(read(*dataset, 0).labels, ElementsAre(4, 4));
  EXPECT_THAT(read(*dataset, 1).labels, ElementsAre(0, 0));
  EXPECT_THAT(read(*dataset, 2).labels, ElementsAre(7, 8));
  EXPECT_THAT(read(*dataset, 3).labels, ElementsAre(0, 0)) << "it begins with w5";
}

TEST_F(SquadData, IdsAndLabelsMayBeReadAlone) {
  const auto dataset = make_dataset(squad_job({question("q", "who", {"w5 w6"})}), Split::Train);
  const std::vector<int64_t> both{1, 0};
  std::vector<int32_t> planes(4 * kLength), labels(4);
  dataset->reader()->fill(both, 0, reinterpret_cast<std::byte*>(planes.data()), nullptr);
  dataset->reader()->fill(both, 0, nullptr, labels.data());
  EXPECT_THAT(labels, ElementsAre(3, 4, 8, 9));
  EXPECT_EQ(planes[3], 11);
  EXPECT_EQ(planes[2 * kLength + 3], 6);
}

TEST_F(SquadData, AQuestionThatCannotBeUsedIsRefusedOrLeftOut) {
  json broken = question("broken", "who", {"w5"});
  broken["answers"][0]["answer_start"] = 1;
  job::Job job = squad_job({question("q", "who", {"w5"}), broken});
  EXPECT_THAT([&] { make_dataset(job, Split::Train); }, ThrowsMessage<BadSample>(HasSubstr("\"broken\"")));
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->skipped()->skipped().left_out, 1);
}

TEST_F(SquadData, AVocabularyThatTheModelHasNoRoomForIsRefused) {
  job::Job job = squad_job({question("q", "who", {"w5"})});
  job.model.vocabulary = 15;
  EXPECT_THAT([&] { make_dataset(job, Split::Train); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("model.vocabulary: 16")));
}

TEST_F(SquadData, OtherDataHasNoScorer) {
  job::Job job = squad_job({question("q", "who", {"w5"})});
  EXPECT_NE(make_dataset(job, Split::Test)->scorer(), nullptr);
  job.data.kind = job::DataKind::Synthetic;
  EXPECT_EQ(make_dataset(job, Split::Test)->scorer(), nullptr);
}

TEST_F(SquadData, TheBestOfAQuestionsWindowsIsItsAnswer) {
  const auto dataset = make_dataset(
      squad_job({question("q", "who", {"w7 w8"}), question("r", "where", {"w0", "w1 w2 w3", "w1"})}), Split::Test);
  const auto scorer = dataset->scorer();
  ASSERT_EQ(dataset->size(), 4);
  const auto count = static_cast<size_t>(scorer->numbers_per_sample());
  std::vector<float> numbers(4 * count);
  const auto score = [&](size_t sample, const std::vector<float>& values) {
    scorer->score(static_cast<int64_t>(sample), values, std::span(numbers).subspan(sample * count, count));
  };
  score(0, logits(3, 1, 5, 2));  // w0 w1 w2
  score(1, logits(5, 3, 6, 3));  // w7 w8, and larger
  score(2, logits(4, 5, 5, 5));  // w1 w2
  score(3, logits(3, 1, 3, 1));  // w5
  const json predictions = json::parse(scorer->predictions_json(numbers));
  EXPECT_EQ(predictions, (json{{"q", "w7 w8"}, {"r", "w1 w2"}}));
  EXPECT_DOUBLE_EQ(figure(*scorer, numbers, "exact_match"), 50);
  EXPECT_DOUBLE_EQ(figure(*scorer, numbers, "f1"), 50 * (1 + 0.8)) << "two of three words, each right";
}

TEST_F(SquadData, NumbersOfSeveralWorkersAddUp) {
  const auto dataset =
      make_dataset(squad_job({question("q", "who", {"w7 w8"}), question("r", "where", {"w1"})}), Split::Test);
  const auto scorer = dataset->scorer();
  const auto count = static_cast<size_t>(scorer->numbers_per_sample());
  std::vector<float> sum(4 * count, 0.0f);
  for (size_t worker = 0; worker < 2; ++worker) {  // each has every second sample, and zeros for the rest
    std::vector<float> own(4 * count, 0.0f);
    for (size_t sample = worker; sample < 4; sample += 2) {
      scorer->score(static_cast<int64_t>(sample), logits(5, -3, 6, -4 + static_cast<float>(sample)),
                    std::span(own).subspan(sample * count, count));
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
  }
  std::vector<float> alone(4 * count);
  for (size_t sample = 0; sample < 4; ++sample) {
    scorer->score(static_cast<int64_t>(sample), logits(5, -3, 6, -4 + static_cast<float>(sample)),
                  std::span(alone).subspan(sample * count, count));
  }
  EXPECT_EQ(sum, alone);
}

// All answers of a window may have a negative score; a window that nobody scored has 0 and must not win.
TEST_F(SquadData, AWindowThatWasNotScoredGivesNoAnswer) {
  const auto dataset = make_dataset(squad_job({question("q", "who", {"w1"})}), Split::Test);
  const auto scorer = dataset->scorer();
  const auto count = static_cast<size_t>(scorer->numbers_per_sample());
  std::vector<float> numbers(2 * count, 0.0f);
  EXPECT_EQ(json::parse(scorer->predictions_json(numbers)), (json{{"q", ""}}));
  EXPECT_EQ(figure(*scorer, numbers, "f1"), 0);
  std::vector<float> values(2 * kLength, -9.0f);
  values[4] = values[kLength + 4] = -5;
  scorer->score(0, values, std::span(numbers).first(count));
  EXPECT_EQ(json::parse(scorer->predictions_json(numbers)), (json{{"q", "w1"}}));
  EXPECT_EQ(figure(*scorer, numbers, "exact_match"), 100);
}

TEST_F(SquadData, LogitsOfPaddingCountForNothing) {
  const auto dataset = make_dataset(squad_job({question("q", "who", {"w5"})}), Split::Test);
  const auto scorer = dataset->scorer();
  std::vector<float> numbers(2 * static_cast<size_t>(scorer->numbers_per_sample()), 0.0f);
  std::vector<float> values = logits(3, 1, 3, 1);  // the second window: 9 of 12 tokens
  for (const size_t at : {9, 10, 11}) values[at] = values[kLength + at] = 100;
  scorer->score(1, values, std::span(numbers).last(numbers.size() / 2));
  EXPECT_EQ(json::parse(scorer->predictions_json(numbers)), (json{{"q", "w5"}}));
}

TEST_F(SquadData, AnswersAreAsLongAsTheJobAllows) {
  job::Job job = squad_job({question("q", "who", {"w5"})});
  std::vector<float> values = logits(3, 2, 6, 2);
  values[5] = 1;  // w2 w3 is 3 in all, w0 to w3 4
  for (const auto& [max_answer, text] : {std::pair{4, "w0 w1 w2 w3"}, std::pair{3, "w2 w3"}}) {
    job.data.max_answer = max_answer;
    const auto dataset = make_dataset(job, Split::Test);
    const auto scorer = dataset->scorer();
    std::vector<float> numbers(2 * static_cast<size_t>(scorer->numbers_per_sample()), 0.0f);
    scorer->score(0, values, std::span(numbers).first(numbers.size() / 2));
    EXPECT_EQ(json::parse(scorer->predictions_json(numbers)), (json{{"q", text}}));
  }
}

}  // namespace
}  // namespace millrace::data
