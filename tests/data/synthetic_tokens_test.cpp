#include "millrace/data/synthetic_tokens.h"

#include <gmock/gmock.h>

#include <vector>

namespace millrace::data {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::Lt;

job::Job token_job(const std::string& model) {
  job::Job job;
  job.batch = 8;
  job.model = {.name = model, .classes = 3, .vocabulary = 50, .tokens = 6};
  job.data = {.kind = job::DataKind::Synthetic, .train_samples = 200, .test_samples = 200};
  return job;
}

struct Samples {
  std::vector<int32_t> ids, labels;
};

Samples all_of(const Dataset& dataset) {
  std::vector<int64_t> samples(static_cast<size_t>(dataset.size()));
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
  Samples result;
  result.ids.resize(samples.size() * static_cast<size_t>(dataset.feature_bytes()) / sizeof(int32_t), -7);
  result.labels.resize(samples.size() * static_cast<size_t>(dataset.label_elements()), -7);
  dataset.reader()->fill(samples, 0, reinterpret_cast<std::byte*>(result.ids.data()), result.labels.data());
  return result;
}

TEST(SyntheticTokens, HaveTheFormThatEachModelReads) {
  struct Case {
    std::string model;
    job::Head head;
    int64_t tokens, labels, label_limit;
  };
  for (const Case& c :
       {Case{"bag_of_tokens", job::Head::Classes, 6, 1, 3}, Case{"bert_base", job::Head::Classes, 12, 1, 3},
        Case{"bert_base", job::Head::Span, 12, 2, 6}, Case{"gpt2", job::Head::Classes, 6, 6, 50}}) {
    SCOPED_TRACE(c.model);
    job::Job job = token_job(c.model);
    job.model.head = c.head;
    const auto dataset = make_dataset(job, Split::Train);
    EXPECT_EQ(dataset->feature_bytes(), c.tokens * 4);
    EXPECT_EQ(dataset->label_elements(), c.labels);
    const Samples samples = all_of(*dataset);
    EXPECT_THAT(samples.ids, Each(AllOf(Ge(0), Lt(50))));
    EXPECT_THAT(samples.labels, Each(AllOf(Ge(0), Lt(c.label_limit))));
    EXPECT_THAT(samples.ids, testing::Contains(49));
    EXPECT_THAT(samples.labels, testing::Contains(c.label_limit - 1));
  }
}

TEST(SyntheticTokens, SegmentsAreZero) {
  const Samples samples = all_of(*make_dataset(token_job("bert_base"), Split::Train));
  for (size_t i = 0; i < samples.ids.size(); ++i) {
    if (i % 12 >= 6) {
      EXPECT_EQ(samples.ids[i], 0);
    }
  }
}

TEST(SyntheticTokens, DependOnSeedAndSplit) {
  job::Job job = token_job("gpt2");
  const Samples train = all_of(*make_dataset(job, Split::Train));
  EXPECT_EQ(train.ids, all_of(*make_dataset(job, Split::Train)).ids);
  EXPECT_NE(train.ids, all_of(*make_dataset(job, Split::Test)).ids);
  job.seed = 9;
  EXPECT_NE(train.ids, all_of(*make_dataset(job, Split::Train)).ids);
}

TEST(SyntheticTokens, WithoutSamplesAreOneFixedBatch) {
  job::Job job = token_job("gpt2");
  job.data.train_samples = 0;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_EQ(dataset->size(), 8);
  EXPECT_TRUE(dataset->one_fixed_batch());
}

}  // namespace
}  // namespace millrace::data
