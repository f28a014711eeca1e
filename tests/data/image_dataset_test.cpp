#include "millrace/data/image_dataset.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "data/files/stored_sets.h"
#include "data/image/test_pictures.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/image/jpeg.h"
#include "millrace/data/loader.h"

namespace millrace::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Sample {
  std::vector<float> image;
  int32_t label = 0;
};

class ImageSets : public StoredSets {
 protected:
  static std::string jpeg(uint64_t key, int channels = 3) {
    const std::vector<uint8_t> bytes = encode_jpeg(test_picture(40, 30, channels, key), 90);
    return {bytes.begin(), bytes.end()};
  }
  // Two parts of unequal length.
  job::Job ofrecord_job(const std::vector<Picture>& pictures) {
    const size_t first = pictures.size() / 3;
    make_folder("set");
    write_bytes(path("set/part-0"),
                framed(std::vector<Picture>(pictures.begin(), pictures.begin() + static_cast<long>(first))));
    write_bytes(path("set/part-1"),
                framed(std::vector<Picture>(pictures.begin() + static_cast<long>(first), pictures.end())));
    job::Job job;
    job.model.image_size = 16;
    job.model.classes = 5;
    job.seed = 7;
    job.data.kind = job::DataKind::OfRecord;
    job.data.train = job.data.test = path("set");
    return job;
  }
  static std::vector<Picture> good_pictures(int count) {
    std::vector<Picture> pictures;
    for (int i = 0; i < count; ++i) pictures.push_back({i % 5, jpeg(static_cast<uint64_t>(i))});
    return pictures;
  }
  static Sample take(Reader& reader, int64_t sample, int64_t epoch, bool features = true) {
    Sample taken{std::vector<float>(3 * 16 * 16, NAN), -7};
    reader.fill(std::vector<int64_t>{sample}, epoch,
                features ? reinterpret_cast<std::byte*>(taken.image.data()) : nullptr, &taken.label);
    return taken;
  }
};

TEST_F(ImageSets, CropsDependOnSeedEpochAndSampleOnly) {
  job::Job job = ofrecord_job(good_pictures(9));
  const auto dataset = make_dataset(job, Split::Train), again = make_dataset(job, Split::Train);
  ASSERT_EQ(dataset->size(), 9);
  EXPECT_EQ(dataset->feature_bytes(), 3 * 16 * 16 * 4);
  const auto reader = dataset->reader(), other = again->reader();
  take(*reader, 2, 5);
  EXPECT_EQ(take(*reader, 4, 1).image, take(*other, 4, 1).image);
  EXPECT_EQ(take(*reader, 4, 1).label, 4);
  EXPECT_NE(take(*reader, 4, 1).image, take(*reader, 4, 2).image);
  job.seed = 8;
  const auto seeded = make_dataset(job, Split::Train), tested = make_dataset(job, Split::Test);
  EXPECT_NE(take(*seeded->reader(), 4, 1).image, take(*reader, 4, 1).image);
  EXPECT_EQ(take(*tested->reader(), 4, 1).image, take(*tested->reader(), 4, 2).image) << "evaluation is not augmented";
}

TEST_F(ImageSets, BadSamplesStopWithFileRecordAndReason) {
  std::vector<std::pair<Picture, std::vector<std::string>>> faults;
  const std::string cut = jpeg(3).substr(0, 500);
  faults.push_back({{1, cut}, {"part-1: record 1"}});
  faults.push_back({{1, "GIF89a" + cut}, {"part-1: record 1"}});
  faults.push_back({{5, jpeg(3)}, {"part-1: record 1", "label 5", "classes 0-4"}});
  faults.push_back({{1, jpeg(3, 1)}, {"part-1: record 1", "grayscale", "data.color: convert"}});
  for (const auto& [picture, says] : faults) {
    std::vector<Picture> pictures = good_pictures(6);
    pictures[3] = picture;
    const auto dataset = make_dataset(ofrecord_job(pictures), Split::Train);
    const auto reader = dataset->reader();
    take(*reader, 2, 0);
    const std::string message = message_of<BadSample>([&] { take(*reader, 3, 0); });
    for (const std::string& part : says) EXPECT_THAT(message, HasSubstr(part));
    EXPECT_THAT(message, HasSubstr("data.on_error: skip"));
    EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  }
}

TEST_F(ImageSets, SkippedSamplesAreEmptyRowsAndCounted) {
  std::vector<Picture> pictures = good_pictures(8);
  pictures[2].bytes.resize(400);
  pictures[5].label = 9;
  job::Job job = ofrecord_job(pictures);
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  Loader loader(*dataset, {.batch = 8, .shuffle = false, .threads = 3});
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.rows, 8);
    for (size_t row = 0; row < 8; ++row) {
      const auto* image = reinterpret_cast<const float*>(batch.features_from(row));
      const bool bad = row == 2 || row == 5;
      EXPECT_EQ(batch.labels[row], bad ? kNoLabel : static_cast<int32_t>(row % 5));
      EXPECT_EQ(std::all_of(image, image + 3 * 16 * 16, [](float x) { return x == 0; }), bad) << row;
    }
  }
  const Skipped skipped = dataset->skipped()->skipped();
  EXPECT_EQ(skipped.left_out, 0);
  EXPECT_GE(skipped.while_reading, 4);  // two in each epoch, and those loaded ahead
  EXPECT_THAT(skipped.reasons, testing::Contains(AllOf(HasSubstr("part-1: record 0"))));
  EXPECT_THAT(skipped.reasons, testing::Contains(AllOf(HasSubstr("part-1: record 3"), HasSubstr("label 9"))));
}

TEST_F(ImageSets, AStageThatReadsOnlyLabelsSkipsTheSameSamples) {
  std::vector<Picture> pictures = good_pictures(30);
  for (const size_t broken : {3u, 11u, 12u, 29u}) pictures[broken].bytes.resize(pictures[broken].bytes.size() - 90);
  job::Job job = ofrecord_job(pictures);
  job.data.on_error = job::OnError::Skip;
  const auto first = make_dataset(job, Split::Train), last = make_dataset(job, Split::Train);
  const auto features = first->reader(), labels = last->reader();
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (int64_t sample = 0; sample < 30; ++sample) {
      EXPECT_EQ(take(*features, sample, epoch).label, take(*labels, sample, epoch, false).label) << sample;
    }
  }
  EXPECT_EQ(last->skipped()->count(), 3 * 4);
}

TEST_F(ImageSets, DamageThatHidesRecordsIsLeftOutOnce) {
  job::Job job = ofrecord_job(good_pictures(9));
  const std::string whole = read_bytes(path("set/part-1"));
  write_bytes(path("set/part-1"), whole.substr(0, whole.size() - 10));
  EXPECT_THAT(message_of<std::invalid_argument>([&] { make_dataset(job, Split::Train); }),
              AllOf(HasSubstr("part-1"), HasSubstr("record 5")));
  job.data.on_error = job::OnError::Skip;
  const auto dataset = make_dataset(job, Split::Train);
  EXPECT_EQ(dataset->size(), 8);
  EXPECT_EQ(dataset->skipped()->skipped().left_out, 1);
}

TEST_F(ImageSets, EmptySplitsAndFoldersWithoutPartsAreRefused) {
  job::Job job = ofrecord_job(good_pictures(3));
  job.data.train = make_folder("none");
  EXPECT_THAT(message_of<std::invalid_argument>([&] { make_dataset(job, Split::Train); }), HasSubstr("none"));
  write_bytes(path("none/part-0"), "");
  EXPECT_THAT(message_of<std::invalid_argument>([&] { make_dataset(job, Split::Train); }), HasSubstr("none"));
  job.data.train = path("nowhere");
  EXPECT_THAT(message_of<std::invalid_argument>([&] { make_dataset(job, Split::Train); }), HasSubstr("nowhere"));
}

TEST_F(ImageSets, AutomaticTransformsFollowTheKindOfData) {
  job::Job job;
  job.data.kind = job::DataKind::OfRecord;
  EXPECT_EQ(resolved_transform(job, Split::Train).kind, job::TransformKind::RandomResizedCrop);
  EXPECT_EQ(resolved_transform(job, Split::Test).kind, job::TransformKind::CenterCrop);
  EXPECT_EQ(resolved_transform(job, Split::Test).short_side, 256);
  EXPECT_EQ(resolved_transform(job, Split::Test).mirror, 0);
  job.data.kind = job::DataKind::Cifar10;
  EXPECT_EQ(resolved_transform(job, Split::Train).kind, job::TransformKind::RandomResizedCrop);
  job.model.image_size = 32;
  EXPECT_EQ(resolved_transform(job, Split::Train).kind, job::TransformKind::PadCrop);
  EXPECT_EQ(resolved_transform(job, Split::Test).kind, job::TransformKind::Resize);
  job.data.train_transform.kind = job::TransformKind::Resize;
  EXPECT_EQ(resolved_transform(job, Split::Train).kind, job::TransformKind::Resize);
}

}  // namespace
}  // namespace millrace::data
