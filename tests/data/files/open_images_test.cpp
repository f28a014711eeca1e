#include "millrace/data/files/open_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/files/stored_sets.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class OpenImagesTest : public StoredSets {
 protected:
  void put(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    write_bytes(path(name), bytes);
  }
  int64_t count(ImageKind kind, const std::string& name, bool train) const {
    return open_images(kind, path(name), train, 0, nullptr)->size();
  }
};

TEST_F(OpenImagesTest, KindsHaveNames) {
  for (const ImageKind kind : kImageKinds) EXPECT_EQ(kind_named(name_of(kind)), kind);
  EXPECT_EQ(kind_named("tfrecord"), std::nullopt);
}

TEST_F(OpenImagesTest, SplitsStandInFoldersOfTheirOwn) {
  put("of/train/part-0", framed(some_pictures(3, 2)));
  put("of/validation/part-0", framed(some_pictures(2, 2)));
  EXPECT_EQ(count(ImageKind::OfRecord, "of", true), 3);
  EXPECT_EQ(count(ImageKind::OfRecord, "of", false), 2);
  EXPECT_EQ(count(ImageKind::OfRecord, "of/train", false), 3);  // as named
  EXPECT_EQ(guess_kind(path("of")), ImageKind::OfRecord);
  EXPECT_EQ(guess_kind(path("of/train")), ImageKind::OfRecord);
  EXPECT_EQ(guess_kind(path("of/train/part-0")), ImageKind::OfRecord);

  put("folder/train/a/1.jpg", "x");
  put("folder/train/b/1.jpg", "x");
  put("folder/val/a/1.jpg", "x");
  EXPECT_EQ(count(ImageKind::ImageFolder, "folder", true), 2);
  EXPECT_EQ(count(ImageKind::ImageFolder, "folder", false), 1);
  EXPECT_EQ(guess_kind(path("folder")), ImageKind::ImageFolder);
  EXPECT_EQ(guess_kind(path("folder/train")), ImageKind::ImageFolder);
}

TEST_F(OpenImagesTest, AClassMayBeCalledTrain) {
  put("vehicles/bus/1.jpg", "x");
  put("vehicles/train/1.jpg", "x");
  const auto source = open_images(ImageKind::ImageFolder, path("vehicles"), true, 0, nullptr);
  EXPECT_EQ(source->class_names(), (std::vector<std::string>{"bus", "train"}));
}

TEST_F(OpenImagesTest, AMissingSplitIsNamed) {
  put("of/train/part-0", framed(some_pictures(3, 2)));
  EXPECT_THAT(message_of<std::invalid_argument>([&] { count(ImageKind::OfRecord, "of", false); }),
              HasSubstr("of: holds only the training split; add a folder validation, val or test beside it"));
  EXPECT_EQ(split_path(ImageKind::OfRecord, path("of"), false), std::nullopt);
  EXPECT_EQ(split_path(ImageKind::OfRecord, path("of"), true), path("of/train"));
}

TEST_F(OpenImagesTest, CifarIsToldByItsNamesAndSizes) {
  put("ten/cifar-10-batches-bin/data_batch_1.bin", cifar_record({1}, 1));
  put("ten/cifar-10-batches-bin/test_batch.bin", cifar_record({1}, 1) + cifar_record({2}, 2));
  EXPECT_EQ(guess_kind(path("ten")), ImageKind::Cifar10);
  EXPECT_EQ(guess_kind(path("ten/cifar-10-batches-bin")), ImageKind::Cifar10);
  EXPECT_EQ(guess_kind(path("ten/cifar-10-batches-bin/test_batch.bin")), ImageKind::Cifar10);
  EXPECT_EQ(count(ImageKind::Cifar10, "ten", true), 1);
  EXPECT_EQ(count(ImageKind::Cifar10, "ten", false), 2);
  put("hundred/test.bin", cifar_record({1, 2}, 1));
  EXPECT_EQ(guess_kind(path("hundred")), ImageKind::Cifar100);
  EXPECT_EQ(guess_kind(path("hundred/test.bin")), ImageKind::Cifar100);
  EXPECT_EQ(count(ImageKind::Cifar100, "hundred", false), 1);
  EXPECT_EQ(split_path(ImageKind::Cifar100, path("hundred"), true), std::nullopt);
}

TEST_F(OpenImagesTest, WhatIsNoneOfThemIsNotGuessed) {
  put("text/a/notes.txt", "x");
  put("model.bin", "x");
  EXPECT_EQ(guess_kind(path("text")), std::nullopt);
  EXPECT_EQ(guess_kind(path("model.bin")), std::nullopt);
  EXPECT_THAT(message_of<std::invalid_argument>([&] { guess_kind(path("nowhere")); }), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace millrace::data
