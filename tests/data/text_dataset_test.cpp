#include "millrace/data/text_dataset.h"

#include <gmock/gmock.h>

#include "millrace/data/bad_sample.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Text : public state::TemporaryFolder {
 protected:
  job::Job text_job(const std::string& rows) {
    write_bytes(path("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n##ly\nfilm\n");
    write_bytes(path("train.tsv"), "sentence\tlabel\n" + rows);
    job::Job job;
    job.model = {.name = "bag_of_tokens", .classes = 2, .vocabulary = 8, .tokens = 6};
    job.data.kind = job::DataKind::TsvText;
    job.data.train = path("train.tsv");
    job.data.vocab = path("vocab.txt");
    return job;
  }
  static std::vector<int32_t> tokens(const Dataset& dataset, int64_t sample) {
    std::vector<int32_t> ids(static_cast<size_t>(dataset.feature_bytes()) / sizeof(int32_t), 99);
    int32_t label = 0;
    dataset.reader()->fill(std::vector<int64_t>{sample}, 0, reinterpret_cast<std::byte*>(ids.data()), &label);
    ids.push_back(label);
    return ids;
  }
};

TEST_F(Text, SentencesBecomeTokensOfOneLength) {
  const auto dataset = make_dataset(text_job("Good film\t1\nBADLY bad film, badly\t0\n"), Split::Train);
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_THAT(tokens(*dataset, 0), ElementsAre(2, 4, 7, 3, kNoToken, kNoToken, 1));
  EXPECT_THAT(tokens(*dataset, 1), ElementsAre(2, 5, 6, 5, 7, 3, 0)) << "cut before [SEP]";
}

TEST_F(Text, CaseIsKeptWhereItIsAskedFor) {
  job::Job job = text_job("Good film\t1\n");
  job.data.lower_case = false;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_EQ(tokens(*dataset, 0)[1], 1) << "the vocabulary has good, not Good";
}

TEST_F(Text, SegmentsFollowTheTokensForBert) {
  job::Job job = text_job("good film\t1\n");
  job.model.name = "bert_base";
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_THAT(tokens(*dataset, 0), ElementsAre(2, 4, 7, 3, kNoToken, kNoToken, 0, 0, 0, 0, 0, 0, 1));
}

TEST_F(Text, LabelsBeyondTheModelsClassesAreRefusedOrSkipped) {
  job::Job job = text_job("good\t1\nbad\t2\nfilm\t0\n");
  EXPECT_THAT([&] { make_dataset(job, Split::Train); },
              testing::ThrowsMessage<BadSample>(
                  AllOf(HasSubstr("train.tsv:3"), HasSubstr("label 2"), HasSubstr("model.classes: 3"))));
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->skipped()->skipped().left_out, 1);
}

TEST_F(Text, ARowWithMissingFieldsIsRefusedOrSkipped) {
  job::Job job = text_job("good\t1\nbad\nfilm\t0\n");
  EXPECT_THAT([&] { make_dataset(job, Split::Train); }, testing::ThrowsMessage<BadSample>(HasSubstr("train.tsv:3")));
  job.data.on_error = job::OnError::Skip;
  EXPECT_EQ(make_dataset(job, Split::Train)->skipped()->skipped().left_out, 1);
}

TEST_F(Text, AVocabularyThatTheModelHasNoRoomForIsRefused) {
  job::Job job = text_job("good\t1\n");
  job.model.vocabulary = 5;
  EXPECT_THAT([&] { make_dataset(job, Split::Train); },
              testing::ThrowsMessage<std::invalid_argument>(HasSubstr("model.vocabulary: 8")));
}

}  // namespace
}  // namespace millrace::data
