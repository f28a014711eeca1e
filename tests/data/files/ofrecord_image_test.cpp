#include "millrace/data/files/ofrecord_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/files/stored_sets.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

class OfRecordImageTest : public StoredSets {
 protected:
  static std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
  static std::string complaint(const std::string& record) {
    return message_of<BadSample>([&] {
      std::vector<uint8_t> bytes = bytes_of(record);
      take_picture(bytes);
    });
  }
  // By the walk; false: it gave up.
  static bool walks(const std::string& record) { return find_picture(bytes_of(record)).has_value(); }
  static Picture taken(const std::string& record) {
    std::vector<uint8_t> bytes = bytes_of(record);
    const int64_t label = take_picture(bytes);
    return {static_cast<int32_t>(label), std::string(bytes.begin(), bytes.end())};
  }
};

TEST_F(OfRecordImageTest, UsualRecordsNeedNoLibrary) {
  const std::string image = noise(1, 300);
  const Picture expected{999, image};
  EXPECT_TRUE(walks(record(expected)));
  EXPECT_EQ(taken(record(expected)), expected);
  EXPECT_TRUE(walks(image_entry(image) + label_entry(999)));
  EXPECT_EQ(taken(image_entry(image) + label_entry(999)), expected);

  const std::string others = entry("text", field(1, field(1, "tench") + field(1, ""))) +
                             entry("box", field(2, field(1, std::string(16, 'f')))) +
                             entry("score", field(3, field(1, std::string(8, 'd')))) +
                             entry("size", field(4, field(1, varint(500) + varint(375)))) +
                             entry("id", field(5, field(1, varint(~uint64_t{0})))) + entry("nothing", "");
  EXPECT_TRUE(walks(others + record(expected)));
  EXPECT_EQ(taken(others + record(expected)), expected);
}

TEST_F(OfRecordImageTest, UnusualRecordsAreReadByTheLibrary) {
  const std::string image = noise(2, 300);
  const Picture expected{7, image};
  const std::string twice = entry("encoded", field(1, field(1, "old"))) + record(expected);
  EXPECT_FALSE(walks(twice));
  EXPECT_EQ(taken(twice), expected);
  const std::string unknown_field = record(expected) + varint(15 * 8) + varint(1);
  EXPECT_FALSE(walks(unknown_field));
  EXPECT_EQ(taken(unknown_field), expected);
  // A length may take up to five bytes, though it needs one; libprotobuf accepts no sixth, so the walk must not either.
  const auto lengthened = [&](const std::string& zeros) {
    return label_entry(7) + "\x0A\x90\x80\x80\x80" + zeros + field(1, "encoded") + field(2, field(1, field(1, "x")));
  };
  EXPECT_TRUE(walks(lengthened(std::string(1, '\0'))));
  EXPECT_EQ(taken(lengthened(std::string(1, '\0'))), (Picture{7, "x"}));
  EXPECT_FALSE(walks(lengthened(std::string("\x80\0", 2))));
  EXPECT_THAT(complaint(lengthened(std::string("\x80\0", 2))), testing::HasSubstr("are not an OFRecord"));
}

TEST_F(OfRecordImageTest, WideAndNegativeLabelsAreKept) {
  const std::string image = image_entry("x");
  const auto label = [&](const std::string& list) {
    std::vector<uint8_t> bytes = bytes_of(image + entry("class/label", list)), judged = bytes;
    const int64_t value = take_picture(bytes);
    EXPECT_EQ(value, take_picture_by_protobuf(judged));
    return value;
  };
  EXPECT_EQ(label(field(5, field(1, varint(uint64_t{1} << 40)))), int64_t{1} << 40);
  EXPECT_EQ(label(field(4, field(1, varint(~uint64_t{0})))), -1);
  EXPECT_EQ(label(field(4, varint(8) + varint(12))), 12);
  EXPECT_EQ(label(field(5, varint(8) + varint(12))), 12);
}

TEST_F(OfRecordImageTest, SaysWhatIsWrongWithARecord) {
  const std::string image = image_entry("x");
  EXPECT_EQ(complaint("\x0A\x7F short"), "its 8 bytes are not an OFRecord; the file is damaged or of another format");
  EXPECT_EQ(complaint(""),
            "no key \"class/label\"; a record needs \"encoded\" and \"class/label\", this one has 0 keys");
  EXPECT_EQ(complaint(label_entry(1)),
            "no key \"encoded\"; a record needs \"encoded\" and \"class/label\", this one has 1 keys");
  EXPECT_EQ(complaint(image + entry("class/label", field(2, field(1, "ffff")))),
            "\"class/label\" is float_list; write an int32_list or int64_list");
  EXPECT_EQ(complaint(image + entry("class/label", "")),
            "\"class/label\" is nothing; write an int32_list or int64_list");
  EXPECT_EQ(complaint(image + entry("class/label", field(4, field(1, varint(1) + varint(2))))),
            "\"class/label\" holds 2 values, 1 is needed");
  EXPECT_EQ(complaint(image + entry("class/label", field(5, ""))), "\"class/label\" holds 0 values, 1 is needed");
  EXPECT_EQ(complaint(label_entry(1) + entry("encoded", field(4, field(1, varint(1))))),
            "\"encoded\" is int32_list; write a bytes_list");
  EXPECT_EQ(complaint(label_entry(1) + entry("encoded", field(1, field(1, "a") + field(1, "b")))),
            "\"encoded\" holds 2 values, 1 is needed");
  EXPECT_EQ(complaint(label_entry(1) + image_entry("")), "\"encoded\" is empty; write a JPEG or PNG file's bytes");
}

// The walk may give up where it likes, but what it accepts the library has to read the same way.
TEST_F(OfRecordImageTest, DamagedRecordsAreJudgedAsByTheLibrary) {
  const std::string start = entry("box", field(2, field(1, std::string(8, 'f')))) +
                            entry("size", field(4, field(1, varint(500) + varint(375)))) + record({300, noise(3, 20)}) +
                            entry("text", field(1, field(1, "tench")));
  ASSERT_TRUE(walks(start));
  const RandomStream stream(5, 0, 0);
  int accepted = 0;
  for (uint64_t round = 0; round < 30000; ++round) {
    std::vector<uint8_t> bytes = bytes_of(start);
    const RandomBlock dice = stream.at(round);
    bytes[dice[0] % bytes.size()] = static_cast<uint8_t>(dice[1]);
    if (dice[2] % 4 == 0) bytes[dice[2] / 4 % bytes.size()] ^= static_cast<uint8_t>(1u << dice[3] % 8);
    if (dice[2] % 7 == 0) bytes.resize(dice[3] % bytes.size());
    const auto found = find_picture(bytes);
    if (!found || found->size == 0) continue;
    ++accepted;
    std::vector<uint8_t> judged = bytes;
    int64_t label = 0;
    ASSERT_NO_THROW(label = take_picture_by_protobuf(judged)) << "round " << round;
    ASSERT_EQ(label, found->label) << "round " << round;
    ASSERT_EQ(judged, std::vector<uint8_t>(bytes.begin() + static_cast<int64_t>(found->begin),
                                           bytes.begin() + static_cast<int64_t>(found->begin + found->size)));
  }
  EXPECT_GT(accepted, 3000);
}

}  // namespace
}  // namespace millrace::data
