// Files of tokens, and the samples of a language model made of them.
#include <gmock/gmock.h>

#include <numeric>

#include "millrace/data/bad_sample.h"
#include "millrace/data/files/token_files.h"
#include "millrace/data/loader.h"
#include "millrace/data/token_dataset.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TokenFile : public state::TemporaryFolder {
 protected:
  static std::string coded(const std::vector<uint32_t>& tokens, int token_bytes = 2) {
    std::string bytes;
    for (const uint32_t token : tokens) {
      for (int i = 0; i < token_bytes; ++i) bytes += static_cast<char>(token >> (8 * i));
    }
    return bytes;
  }
  static std::vector<uint32_t> counting(uint32_t first, uint32_t count) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  job::Job token_job(const std::string& file, int length = 4, int vocabulary = 1000) const {
    job::Job job;
    job.model = {.name = "gpt2", .vocabulary = vocabulary, .tokens = length};
    job.data.kind = job::DataKind::TokenFile;
    job.data.train = path(file);
    return job;
  }
  struct Sample {
    std::vector<int32_t> ids, labels;
  };
  static Sample read(const Dataset& dataset, int64_t sample) {
    Sample result;
    result.ids.resize(static_cast<size_t>(dataset.feature_bytes()) / sizeof(int32_t), 99);
    result.labels.resize(static_cast<size_t>(dataset.label_elements()), 99);
    dataset.reader()->fill(std::vector<int64_t>{sample}, 0, reinterpret_cast<std::byte*>(result.ids.data()),
                           result.labels.data());
    return result;
  }
};

TEST_F(TokenFile, LabelsAreTheTokensOneFurther) {
  write_bytes(path("train.bin"), coded(counting(250, 11)));  // over the edge of a byte
  const auto dataset = make_dataset(token_job("train.bin"), Split::Train);
  ASSERT_EQ(dataset->size(), 2) << "the third would need tokens 8 to 12 of 11";
  EXPECT_EQ(dataset->feature_bytes(), 16);
  EXPECT_EQ(dataset->label_elements(), 4);
  EXPECT_THAT(read(*dataset, 0).ids, ElementsAre(250, 251, 252, 253));
  EXPECT_THAT(read(*dataset, 0).labels, ElementsAre(251, 252, 253, 254));
  EXPECT_THAT(read(*dataset, 1).ids, ElementsAre(254, 255, 256, 257));
  EXPECT_THAT(read(*dataset, 1).labels, ElementsAre(255, 256, 257, 258));
}

TEST_F(TokenFile, OneTokenMoreMakesASampleMore) {
  for (const auto& [tokens, samples] : {std::pair{5u, 1}, {8u, 1}, {9u, 2}, {12u, 2}, {13u, 3}}) {
    write_bytes(path("train.bin"), coded(counting(0, tokens)));
    EXPECT_EQ(make_dataset(token_job("train.bin"), Split::Train)->size(), samples) << tokens;
  }
}

TEST_F(TokenFile, TokensMayHaveFourBytes) {
  write_bytes(path("train.bin"), coded({70'000, 1, 99'999, 0x10000, 5}, 4));
  job::Job job = token_job("train.bin", 4, 100'000);
  job.data.token_bytes = 4;
  const auto dataset = make_dataset(job, Split::Train);
  ASSERT_EQ(dataset->size(), 1);
  EXPECT_THAT(read(*dataset, 0).ids, ElementsAre(70'000, 1, 99'999, 0x10000));
  EXPECT_THAT(read(*dataset, 0).labels, ElementsAre(1, 99'999, 0x10000, 5));
}

TEST_F(TokenFile, SamplesOfAFolderKeepToTheirFile) {
  std::filesystem::create_directories(path("set"));
  write_bytes(path("set/part10.bin"), coded(counting(200, 6)));
  write_bytes(path("set/part9.bin"), coded(counting(100, 10)));
  write_bytes(path("set/notes.txt"), "x");
  const auto dataset = make_dataset(token_job("set"), Split::Train);
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_THAT(read(*dataset, 1).ids, ElementsAre(104, 105, 106, 107));
  EXPECT_THAT(read(*dataset, 1).labels, ElementsAre(105, 106, 107, 108));
  EXPECT_THAT(read(*dataset, 2).ids, ElementsAre(200, 201, 202, 203)) << "part10 comes after part9";
}

TEST_F(TokenFile, EachSplitHasItsFile) {
  write_bytes(path("train.bin"), coded(counting(0, 9)));
  write_bytes(path("test.bin"), coded(counting(50, 5)));
  job::Job job = token_job("train.bin");
  job.data.test = path("test.bin");
  EXPECT_EQ(make_dataset(job, Split::Train)->size(), 2);
  const auto test = make_dataset(job, Split::Test);
  ASSERT_EQ(test->size(), 1);
  EXPECT_EQ(read(*test, 0).ids[0], 50);
}

TEST_F(TokenFile, ATokenBeyondTheVocabularyIsRefused) {
  write_bytes(path("train.bin"), coded({0, 1, 2, 3, 4, 5, 6, 1000, 8}));
  const auto dataset = make_dataset(token_job("train.bin"), Split::Train);
  EXPECT_NO_THROW(read(*dataset, 0));
  EXPECT_THAT(
      [&] { read(*dataset, 1); },
      ThrowsMessage<BadSample>(path("train.bin") + ": token 1000 at position 7, and model.vocabulary is 1000; write "
                                                   "model.vocabulary: 1001 or more, or data.on_error: skip"));
}

TEST_F(TokenFile, TheVerdictIsTheSameForIdsAndForLabels) {
  write_bytes(path("train.bin"), coded({0, 1, 2, 3, 1000, 5, 6, 7, 8}));  // a label of the first, an id of the second
  job::Job job = token_job("train.bin");
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  const std::vector<int64_t> both{0, 1};
  std::vector<int32_t> ids(8, 99), labels(8, 99);
  dataset->reader()->fill(both, 0, reinterpret_cast<std::byte*>(ids.data()), nullptr);
  EXPECT_EQ(dataset->skipped()->count(), 0) << "who has the labels counts";
  dataset->reader()->fill(both, 0, nullptr, labels.data());
  EXPECT_THAT(ids, Each(kNoToken));
  EXPECT_THAT(labels, Each(kNoLabel));
  ASSERT_EQ(dataset->skipped()->skipped().while_reading, 2);
  EXPECT_THAT(dataset->skipped()->reasons()[0], HasSubstr("token 1000 at position 4"));
}

TEST_F(TokenFile, ASkippedSampleLeavesItsNeighboursAlone) {
  write_bytes(path("train.bin"), coded({0, 1, 2, 3, 4, 5, 1000, 7, 8, 9, 10, 11, 12}));
  job::Job job = token_job("train.bin");
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  std::vector<int32_t> ids(12, 99), labels(12, 99);
  dataset->reader()->fill(std::vector<int64_t>{0, 1, 2}, 0, reinterpret_cast<std::byte*>(ids.data()), labels.data());
  EXPECT_THAT(ids, ElementsAre(0, 1, 2, 3, -1, -1, -1, -1, 8, 9, 10, 11));
  EXPECT_THAT(labels, ElementsAre(1, 2, 3, 4, -1, -1, -1, -1, 9, 10, 11, 12));
}

TEST_F(TokenFile, TokensOfTwoBytesReadAsFourAreToldApart) {
  write_bytes(path("train.bin"), coded(counting(300, 12)));
  job::Job job = token_job("train.bin");
  job.data.token_bytes = 4;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_THAT([&] { read(*dataset, 0); }, ThrowsMessage<BadSample>(HasSubstr("write data.token_bytes: 2")));
}

TEST_F(TokenFile, WhatIsMissingOrCutIsRefused) {
  const auto refuses = [&](const std::string& file, const std::string& says) {
    EXPECT_THAT([&] { make_dataset(token_job(file), Split::Train); },
                ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr(path(file)), HasSubstr(says))));
  };
  refuses("nowhere.bin", "there is no such file");
  write_bytes(path("empty.bin"), "");
  refuses("empty.bin", "0 tokens, and a sample of model.tokens 4 needs 5");
  write_bytes(path("short.bin"), coded(counting(0, 4)));
  refuses("short.bin", "4 tokens, and a sample of model.tokens 4 needs 5");
  write_bytes(path("odd.bin"), coded(counting(0, 9)) + "x");
  refuses("odd.bin", "19 bytes are no whole number of tokens of 2 bytes");
  std::filesystem::create_directories(path("folder"));
  refuses("folder", "no .bin files");
}

TEST_F(TokenFile, AShortFileOfAFolderIsRefusedOrLeftOut) {
  std::filesystem::create_directories(path("set"));
  write_bytes(path("set/a.bin"), coded(counting(0, 3)));
  write_bytes(path("set/b.bin"), coded(counting(10, 5)));
  write_bytes(path("set/c.bin"), coded(counting(0, 4)));
  job::Job job = token_job("set");
  EXPECT_THAT([&] { make_dataset(job, Split::Train); }, ThrowsMessage<BadSample>(HasSubstr("a.bin: 3 tokens")));
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  ASSERT_EQ(dataset->size(), 1);
  EXPECT_EQ(dataset->skipped()->skipped().left_out, 2);
  EXPECT_EQ(read(*dataset, 0).ids[0], 10);

  std::filesystem::remove(path("set/b.bin"));
  EXPECT_THAT([&] { make_dataset(job, Split::Train); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("none of 2 files is long enough")));
}

TEST_F(TokenFile, AFileThatShrinksWhileItIsReadIsAFailure) {
  write_bytes(path("train.bin"), coded(counting(0, 13)));
  const auto dataset = make_dataset(token_job("train.bin"), Split::Train);
  std::filesystem::resize_file(path("train.bin"), 20);
  EXPECT_NO_THROW(read(*dataset, 0));
  EXPECT_THAT([&] { read(*dataset, 2); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("13 tokens"), HasSubstr("ends after 10"))));
}

TEST_F(TokenFile, LoaderThreadsReadWhatOneReaderReads) {
  constexpr int kLength = 16;
  std::vector<uint32_t> tokens(16 * 400 + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 7919 % 1000);
  write_bytes(path("train.bin"), coded(tokens));
  const auto dataset = make_dataset(token_job("train.bin", kLength), Split::Train);
  Loader loader(*dataset, {.batch = 50, .seed = 3, .threads = 4, .ahead = 3});
  int64_t seen = 0;
  for (int64_t batch = 0; batch < loader.batches_per_epoch(); ++batch) {
    const Batch& loaded = loader.next();
    for (size_t row = 0; row < loaded.samples.size(); ++row, ++seen) {
      const auto* ids = reinterpret_cast<const int32_t*>(loaded.features_from(row));
      const int32_t* labels = loaded.labels_from(row);
      for (size_t i = 0; i < kLength; ++i) {
        const size_t at = static_cast<size_t>(loaded.samples[row]) * kLength + i;
        ASSERT_EQ(ids[i], static_cast<int32_t>(tokens[at]));
        ASSERT_EQ(labels[i], static_cast<int32_t>(tokens[at + 1]));
      }
    }
  }
  EXPECT_EQ(seen, 400);
}

TEST_F(TokenFile, TheLargestTokenIsFoundInAnyPieceOfAnyFile) {
  std::filesystem::create_directories(path("set"));
  std::vector<uint32_t> tokens(600'000, 7);  // more than two pieces
  tokens[590'000] = 50'256;
  tokens[590'001] = 50'256;
  write_bytes(path("set/a.bin"), coded({50'255, 1}));
  write_bytes(path("set/b.bin"), coded(tokens));
  write_bytes(path("set/c.bin"), "");
  int64_t last = 0;
  const LargestToken largest = largest_token(TokenFiles(path("set"), 2), 3, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 600'002);
    EXPECT_GT(done, last);
    last = done;
  });
  EXPECT_EQ(last, 600'002);
  EXPECT_EQ(largest.token, 50'256u);
  EXPECT_EQ(largest.file, 1u);
  EXPECT_EQ(largest.position, 590'000);
}

}  // namespace
}  // namespace millrace::data
