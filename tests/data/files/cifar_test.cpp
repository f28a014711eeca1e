#include "millrace/data/files/cifar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/files/stored_sets.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CifarTest : public StoredSets {
 protected:
  // Two records in each of five training files, one in the test file.
  void write_ten(const std::string& folder) const {
    for (int batch = 1; batch <= 5; ++batch) {
      write_bytes(folder + "/data_batch_" + std::to_string(batch) + ".bin",
                  cifar_record({batch}, 10 + batch) + cifar_record({batch + 4}, 20 + batch));
    }
    write_bytes(folder + "/test_batch.bin", cifar_record({3}, 99));
    write_bytes(folder + "/batches.meta.txt",
                "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  }
};

TEST_F(CifarTest, TenClassesComeFromFiveFiles) {
  write_ten(path(""));
  const Cifar source(path(""), CifarLabels::Ten, true, 10, nullptr);
  ASSERT_EQ(source.size(), 10);
  EXPECT_EQ(source.classes(), 10);
  for (int i = 0; i < 10; ++i) {
    const int batch = i / 2 + 1;
    EXPECT_EQ(read(source, i), (Picture{i % 2 ? batch + 4 : batch, noise(10 + batch + i % 2 * 10, 3072)}));
  }
  EXPECT_EQ(source.place(3), path("") + "data_batch_2.bin: record 1");
  ASSERT_EQ(source.class_names().size(), 10u);
  EXPECT_EQ(source.class_names()[6], "frog");

  const Cifar test(path(""), CifarLabels::Ten, false, 10, nullptr);
  ASSERT_EQ(test.size(), 1);
  EXPECT_EQ(read(test, 0), (Picture{3, noise(99, 3072)}));
}

TEST_F(CifarTest, PixelsAreRawPlanes) {
  write_ten(path(""));
  StoredImage image;
  Cifar(path(""), CifarLabels::Ten, false, 10, nullptr).read(0, image);
  EXPECT_EQ(image.raw_size, 32);
  EXPECT_EQ(image.bytes.size(), 3072u);
}

TEST_F(CifarTest, AHundredClassesHaveACoarseAndAFineLabel) {
  write_bytes(path("train.bin"), cifar_record({19, 99}, 1) + cifar_record({4, 0}, 2));
  write_bytes(path("test.bin"), cifar_record({1, 2}, 3));
  const Cifar fine(path(""), CifarLabels::Hundred, true, 100, nullptr);
  EXPECT_EQ(read_all(fine), (std::vector<Picture>{{99, noise(1, 3072)}, {0, noise(2, 3072)}}));
  EXPECT_EQ(fine.classes(), 100);
  EXPECT_TRUE(fine.class_names().empty());
  const Cifar coarse(path(""), CifarLabels::SuperTwenty, true, 20, nullptr);
  EXPECT_EQ(read_all(coarse), (std::vector<Picture>{{19, noise(1, 3072)}, {4, noise(2, 3072)}}));
  EXPECT_EQ(coarse.classes(), 20);
  EXPECT_EQ(read(Cifar(path(""), CifarLabels::Hundred, false, 100, nullptr), 0).label, 2);
}

TEST_F(CifarTest, TheFolderAboveAndSingleFilesWillDo) {
  write_ten(make_folder("cifar-10-batches-bin"));
  EXPECT_EQ(Cifar(path(""), CifarLabels::Ten, true, 0, nullptr).size(), 10);
  EXPECT_EQ(Cifar(path("cifar-10-batches-bin/data_batch_3.bin"), CifarLabels::Ten, true, 0, nullptr).size(), 2);
  write_bytes(make_folder("cifar-100-binary") + "/test.bin", cifar_record({1, 2}, 3));
  EXPECT_EQ(Cifar(path(""), CifarLabels::Hundred, false, 0, nullptr).size(), 1);
}

TEST_F(CifarTest, AnIncompleteRecordIsCountedOut) {
  write_bytes(path("train.bin"), (cifar_record({1, 2}, 3) + cifar_record({1, 3}, 4)).substr(0, 5000));
  const auto open = [&](SkipLog* skip) { return Cifar(path(""), CifarLabels::Hundred, true, 0, skip).size(); };
  const std::string said = path("") + "train.bin: 5000 bytes are 1 records of 3074 and 1926 more";
  EXPECT_EQ(message_of<BadSample>([&] { open(nullptr); }), said + "; unpack CIFAR-100 again");
  SkipLog skip;
  EXPECT_EQ(open(&skip), 1);
  EXPECT_EQ(skip.reasons(), std::vector<std::string>{said + "; the last 1926 bytes of the file are left out"});
}

TEST_F(CifarTest, TheOtherSetIsRecognised) {
  write_bytes(path("data_batch_1.bin"), cifar_record({1, 2}, 3));
  EXPECT_THAT(message_of<BadSample>([&] { Cifar(path(""), CifarLabels::Ten, true, 0, nullptr); }),
              HasSubstr("3074 bytes are 1 records of 3073 and 1 more; as CIFAR-100 it would be whole, set data.kind: "
                        "cifar100"));
}

TEST_F(CifarTest, LabelsHaveToBeOfTheSetAndTheModel) {
  write_bytes(path("test_batch.bin"), cifar_record({9}, 1) + cifar_record({10}, 2));
  const Cifar source(path(""), CifarLabels::Ten, false, 5, nullptr);
  EXPECT_EQ(message_of<BadSample>([&] { read(source, 0); }),
            path("") + "test_batch.bin: record 0: label 9, the model has classes 0-4; set model.classes: 10");
  EXPECT_EQ(message_of<BadSample>([&] { read(source, 1); }),
            path("") +
                "test_batch.bin: record 1: label 10, CIFAR-10 has classes 0-9; the file is damaged or of another "
                "format (byte 3073)");
}

TEST_F(CifarTest, SaysWhatToNameInstead) {
  const auto open = [&](const std::string& name, bool train) { Cifar(name, CifarLabels::Ten, train, 0, nullptr); };
  EXPECT_THAT(message_of<std::invalid_argument>([&] { open(path("nowhere"), true); }), HasSubstr("does not exist"));
  EXPECT_THAT(message_of<std::invalid_argument>([&] { open(path(""), false); }), HasSubstr("holds no test_batch.bin"));
  write_ten(path(""));
  fs::remove(path("data_batch_3.bin"));
  EXPECT_THAT(message_of<std::invalid_argument>([&] { open(path(""), true); }),
              HasSubstr("data_batch_3.bin is missing, and there are later ones"));
  write_bytes(path("test_batch.bin"), "");
  EXPECT_THAT(message_of<std::invalid_argument>([&] { open(path(""), false); }), HasSubstr("no record in"));
}

TEST_F(CifarTest, WritesThePublishedLayout) {
  const auto add = [](CifarWriter& writer, const std::string& planes, int label, int coarse) {
    writer.add({reinterpret_cast<const uint8_t*>(planes.data()), planes.size()}, label, coarse);
  };
  CifarWriter ten(path("ten"), false);
  for (int i = 0; i < 40; ++i) add(ten, noise(i, 3072), i % 10, 0);
  ten.finish();
  std::string expected;
  for (int i = 0; i < 40; ++i) expected += cifar_record({i % 10}, i);
  EXPECT_TRUE(read_bytes(path("ten")) == expected);

  CifarWriter hundred(path("hundred"), true);
  add(hundred, noise(1, 3072), 99, 19);
  EXPECT_THROW(add(hundred, noise(1, 3072), 100, 0), std::invalid_argument);
  EXPECT_THROW(add(hundred, noise(1, 3072), 0, 20), std::invalid_argument);
  EXPECT_THROW(add(hundred, noise(1, 3071), 0, 0), std::invalid_argument);
  hundred.finish();
  EXPECT_TRUE(read_bytes(path("hundred")) == cifar_record({19, 99}, 1));
}

}  // namespace
}  // namespace millrace::data
