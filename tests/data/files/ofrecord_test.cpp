#include "millrace/data/files/ofrecord.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "data/files/stored_sets.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/ofrecord_writer.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class OfRecordTest : public StoredSets {
 protected:
  // The exit code of tests/data/files/ofrecord_independent.py.
  static int independent(const std::string& arguments) {
    const std::string script = std::string(MILLRACE_SOURCE_DIR) + "/tests/data/files/ofrecord_independent.py";
    const int status = std::system(("/usr/bin/python3 -B " + script + " " + arguments).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static bool has_python() { return fs::exists("/usr/bin/python3"); }

  // What the independent program lists.
  static std::string listed(const std::vector<Picture>& pictures) {
    std::string bytes;
    for (const Picture& picture : pictures) {
      bytes += length(picture.label).substr(0, 4) + length(static_cast<int64_t>(picture.bytes.size())).substr(0, 4);
      bytes += picture.bytes;
    }
    return bytes;
  }

  void expect_reads_what_is_written(const std::string& way) {
    if (!has_python()) GTEST_SKIP() << "needs /usr/bin/python3";
    const std::string folder = make_folder("set");
    const int code = independent(way + " write " + folder + " " + path("list"));
    if (code == 77) GTEST_SKIP() << "needs python3-protobuf";
    ASSERT_EQ(code, 0);
    const OfRecordFiles source(folder, 0, nullptr);
    EXPECT_EQ(source.size(), 110);
    EXPECT_TRUE(listed(read_all(source)) == read_bytes(path("list")));
  }
  void expect_writes_what_is_read(const std::string& way) {
    if (!has_python()) GTEST_SKIP() << "needs /usr/bin/python3";
    const std::string folder = make_folder("set");
    std::vector<Picture> all;
    for (int part = 0; part < 3; ++part) {
      OfRecordWriter writer(folder + "/part-0000" + std::to_string(part));
      for (const size_t size : {1, 127, 128, 16383, 16384, 100000, 2097152}) {
        if (part == 1) break;  // an empty one
        all.push_back({static_cast<int32_t>(size % 1000), noise(size, size)});
        const std::string& bytes = all.back().bytes;
        writer.add({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, all.back().label);
      }
      writer.finish();
    }
    const int code = independent(way + " read " + folder + " " + path("list"));
    if (code == 77) GTEST_SKIP() << "needs python3-protobuf";
    ASSERT_EQ(code, 0);
    EXPECT_TRUE(read_bytes(path("list")) == listed(all));
  }

  // Parts of 0, 1, 2, 0, 1, 2, ... records; returns all pictures.
  std::vector<Picture> write_parts(const std::string& folder, int parts) const {
    std::vector<Picture> all;
    for (int part = 0; part < parts; ++part) {
      const auto pictures = some_pictures(part % 3, 10, static_cast<uint64_t>(part) + 1);
      write_bytes(folder + "/part-" + std::to_string(part), framed(pictures));
      all.insert(all.end(), pictures.begin(), pictures.end());
    }
    return all;
  }
};

TEST_F(OfRecordTest, ReadsWhatAHandWrittenCodecWrites) { expect_reads_what_is_written("struct"); }
TEST_F(OfRecordTest, ReadsWhatGoogleProtobufWrites) { expect_reads_what_is_written("protobuf"); }
TEST_F(OfRecordTest, IsReadByAHandWrittenCodec) { expect_writes_what_is_read("struct"); }
TEST_F(OfRecordTest, IsReadByGoogleProtobuf) { expect_writes_what_is_read("protobuf"); }

TEST_F(OfRecordTest, WritesEachRecordInOneWay) {
  OfRecordWriter writer(path("part-0"));
  const auto pictures = some_pictures(5, 10);
  for (const Picture& picture : pictures) {
    writer.add({reinterpret_cast<const uint8_t*>(picture.bytes.data()), picture.bytes.size()}, picture.label);
  }
  EXPECT_FALSE(fs::exists(path("part-0")));  // not before it is whole
  writer.finish();
  EXPECT_EQ(writer.records(), 5);
  EXPECT_EQ(read_bytes(path("part-0")), framed(pictures));
  EXPECT_EQ(writer.bytes(), static_cast<int64_t>(framed(pictures).size()));
}

TEST_F(OfRecordTest, APartThatIsNotFinishedLeavesNothing) {
  { OfRecordWriter(path("part-0")).add(std::vector<uint8_t>(100000, 1), 0); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(OfRecordTest, PartsMayBeOfUnequalLengthAndEmpty) {
  const std::string folder = make_folder("set");
  const auto all = write_parts(folder, 25);
  const OfRecordFiles source(folder, 10, nullptr);
  EXPECT_EQ(source.num_parts(), 25u);
  EXPECT_EQ(source.size(), static_cast<int64_t>(all.size()));
  EXPECT_EQ(read_all(source), all);
  EXPECT_EQ(source.place(0), folder + "/part-1: record 0");
  EXPECT_EQ(source.place(2), folder + "/part-2: record 1");
  EXPECT_EQ(source.place(source.size() - 1), folder + "/part-23: record 1");
}

TEST_F(OfRecordTest, PartsAreOrderedByTheirNumbers) {
  const std::string folder = make_folder("set");
  for (const int number : {10, 9, 100, 2, 0}) {
    write_bytes(folder + "/part-" + std::to_string(number), framed({{number, "x"}}));
  }
  write_bytes(folder + "/.part-3.tmp", "unfinished");
  write_bytes(folder + "/classes", "not a part");
  std::vector<int> labels;
  for (const Picture& picture : read_all(OfRecordFiles(folder, 0, nullptr))) labels.push_back(picture.label);
  EXPECT_EQ(labels, (std::vector<int>{0, 2, 9, 10, 100}));
}

TEST_F(OfRecordTest, OneFileIsASetToo) {
  const auto pictures = some_pictures(6, 10);
  write_bytes(path("mine.ofrecord"), framed(pictures));
  EXPECT_EQ(read_all(OfRecordFiles(path("mine.ofrecord"), 10, nullptr)), pictures);
}

TEST_F(OfRecordTest, ClassNamesStandBesideTheParts) {
  write_bytes(path("part-0"), framed(some_pictures(4, 2)));
  EXPECT_EQ(OfRecordFiles(path(""), 0, nullptr).classes(), 0);
  write_bytes(path("classes.txt"), "tench\ngoldfish\n");
  const OfRecordFiles source(path(""), 0, nullptr);
  EXPECT_EQ(source.class_names(), (std::vector<std::string>{"tench", "goldfish"}));
  EXPECT_EQ(source.classes(), 2);
}

TEST_F(OfRecordTest, LabelsHaveToBeOfTheModel) {
  write_bytes(path("part-3"), framed({{999, "x"}, {1000, "x"}, {-1, "x"}}));
  const OfRecordFiles source(path("part-3"), 1000, nullptr);
  EXPECT_EQ(read(source, 0).label, 999);
  EXPECT_EQ(message_of<BadSample>([&] { read(source, 1); }),
            path("part-3") +
                ": record 1: label 1000, the model has classes 0-999; write labels from 0, or set model.classes");
  EXPECT_THAT(message_of<BadSample>([&] { read(source, 2); }), HasSubstr("record 2: label -1, the model has"));
  const OfRecordFiles any(path("part-3"), 0, nullptr);
  EXPECT_EQ(read(any, 1).label, 1000);
  EXPECT_EQ(message_of<BadSample>([&] { read(any, 2); }), path("part-3") + ": record 2: label -1; write labels from 0");
  write_bytes(path("classes.txt"), "a\nb\n");
  const OfRecordFiles named(path("part-3"), 0, nullptr);
  EXPECT_THAT(message_of<BadSample>([&] { read(named, 0); }), HasSubstr("label 999, classes.txt names classes 0-1"));
}

TEST_F(OfRecordTest, LabelsBeyondThirtyTwoBitsAreRefused) {
  write_bytes(path("part-0"), framed(image_entry("x") + entry("class/label", field(5, field(1, varint(1ull << 32))))));
  const OfRecordFiles source(path("part-0"), 0, nullptr);
  EXPECT_THAT(message_of<BadSample>([&] { read(source, 0); }), HasSubstr("label 4294967296"));
}

TEST_F(OfRecordTest, ABrokenRecordIsNamedWithItsPlace) {
  const std::string good = framed({{1, "abc"}});
  write_bytes(path("part-0"), good + framed("\x0A\x7F broken") + good);
  const OfRecordFiles source(path("part-0"), 0, nullptr);
  ASSERT_EQ(source.size(), 3);
  EXPECT_EQ(message_of<BadSample>([&] { read(source, 1); }),
            path("part-0") +
                ": record 1: its 9 bytes are not an OFRecord; the file is damaged or of another format (byte " +
                std::to_string(good.size() + 8) + ")");
  EXPECT_EQ(read(source, 2).bytes, "abc");  // the others are not touched by it
}

// Each kind of damage after two good records: what is said, and what is left.
TEST_F(OfRecordTest, DamageBetweenRecordsIsNamedWithItsByte) {
  const std::string good = framed(some_pictures(2, 10));
  const std::string at = std::to_string(good.size());
  const std::vector<std::pair<std::string, std::string>> cases{
      {"\x01\x02\x03", "the file ends after 3 of the 8 bytes of its length"},
      {length(-5) + "abcdef", "its length -5 is negative"},
      {length(int64_t{1} << 31) + "abcdef", "its length 2147483648 is more than a record can have, 2147483647"},
      {length(INT64_MAX) + "abcdef", "its length 9223372036854775807 is more than a record can have, 2147483647"},
      {length(7) + "abcdef", "its length is 7 bytes, the file has 6 after it"},
      {length(1), "its length is 1 bytes, the file has 0 after it"},
  };
  for (const auto& [damage, what] : cases) {
    const std::string folder = make_folder("set");
    write_bytes(folder + "/part-0", framed(some_pictures(1, 10)));
    write_bytes(folder + "/part-1", good + damage);
    write_bytes(folder + "/part-2", good);
    const std::string said = folder + "/part-1: record 2 at byte " + at + ": " + what;
    const std::string lost = std::to_string(damage.size());
    EXPECT_EQ(message_of<BadSample>([&] { OfRecordFiles(folder, 10, nullptr); }),
              said + "; write the part again, or set data.on_error: skip to do without its last " + lost + " bytes");
    SkipLog skip;
    const OfRecordFiles source(folder, 10, &skip);
    EXPECT_EQ(source.size(), 5);
    EXPECT_EQ(source.part_records(1), 2);
    EXPECT_EQ(read(source, 4), some_pictures(2, 10)[1]);
    ASSERT_EQ(skip.count(), 1);
    EXPECT_EQ(skip.reasons().front(), said + "; the last " + lost + " bytes of the part are left out");
  }
}

TEST_F(OfRecordTest, DamagedPartsAreLoggedInTheirOrder) {
  for (int part = 0; part < 40; ++part) {
    write_bytes(path("part-" + std::to_string(part)), framed({{1, "x"}}) + (part % 10 == 7 ? "bad" : ""));
  }
  SkipLog skip;
  EXPECT_EQ(OfRecordFiles(path(""), 0, &skip, 4).size(), 40);
  ASSERT_EQ(skip.count(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_THAT(skip.reasons()[i], HasSubstr("part-" + std::to_string(10 * i + 7) + ":"));
  EXPECT_THAT(message_of<BadSample>([&] { OfRecordFiles(path(""), 0, nullptr, 4); }), HasSubstr("part-7:"));
}

TEST_F(OfRecordTest, SaysWhatToNameInstead) {
  EXPECT_THAT(message_of<std::invalid_argument>([&] { OfRecordFiles(path("nowhere"), 0, nullptr); }),
              HasSubstr("nowhere: does not exist; name a folder of OFRecord files"));
  EXPECT_THAT(message_of<std::invalid_argument>([&] { OfRecordFiles(path(""), 0, nullptr); }),
              HasSubstr("holds no file part-*; name the folder in which part-00000 stands"));
  write_bytes(path("part-0"), "");
  write_bytes(path("part-1"), "");
  EXPECT_THAT(message_of<std::invalid_argument>([&] { OfRecordFiles(path(""), 0, nullptr); }),
              HasSubstr("2 parts, but no record in them"));
}

TEST_F(OfRecordTest, AFileThatShrankIsNotASample) {
  write_bytes(path("part-0"), framed(some_pictures(3, 10)));
  const OfRecordFiles source(path("part-0"), 10, nullptr);
  fs::resize_file(path("part-0"), fs::file_size(path("part-0")) - 5);
  EXPECT_EQ(read(source, 1), some_pictures(3, 10)[1]);
  EXPECT_THAT(message_of<std::runtime_error>([&] { read(source, 2); }), HasSubstr("changed since it was opened"));
}

// The soft limit of open files, put back afterwards.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = limit;
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

int64_t open_descriptors() {
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()) - 1;
}

TEST_F(OfRecordTest, ManyPartsNeedFewDescriptors) {
  const std::string folder = make_folder("set");
  const auto all = write_parts(folder, 2048);
  const int64_t before = open_descriptors();
  const FewDescriptors limit(static_cast<rlim_t>(before) + 40);
  const OfRecordFiles source(folder, 10, nullptr);
  EXPECT_LT(source.max_open_files(), 64u);
  EXPECT_LE(open_descriptors(), before + static_cast<int64_t>(source.max_open_files()));
  std::vector<std::jthread> readers;
  std::atomic<int> wrong{0};
  for (int reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&, reader] {
      StoredImage image;
      for (int64_t i = 0; i < source.size(); ++i) {
        const int64_t sample = (i * 997 + reader * 31) % source.size();
        source.read(sample, image);
        wrong += std::string(image.bytes.begin(), image.bytes.end()) != all[sample].bytes;
      }
    });
  }
  readers.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(open_descriptors(), before + static_cast<int64_t>(source.max_open_files()));
}

TEST_F(OfRecordTest, GivesWayWhereOthersTakeTheDescriptors) {
  const std::string folder = make_folder("set");
  const auto all = write_parts(folder, 64);
  const FewDescriptors limit(static_cast<rlim_t>(open_descriptors()) + 60);
  const OfRecordFiles source(folder, 10, nullptr);
  read_all(source);
  std::vector<int> taken;  // all that are left
  for (int descriptor = ::dup(0); descriptor >= 0; descriptor = ::dup(0)) taken.push_back(descriptor);
  EXPECT_EQ(read_all(source), all);
  for (const int descriptor : taken) ::close(descriptor);
}

TEST_F(OfRecordTest, SeveralThreadsReadAtOnce) {
  const std::string folder = make_folder("set");
  const auto all = write_parts(folder, 30);
  const OfRecordFiles source(folder, 10, nullptr, 4);
  std::vector<std::jthread> readers;
  std::atomic<int> wrong{0};
  for (int reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&, reader] {
      StoredImage image;
      for (int64_t i = 0; i < 2000; ++i) {
        const int64_t sample = (i * 7 + reader) % source.size();
        source.read(sample, image);
        wrong += image.label != all[sample].label ||
                 std::string(image.bytes.begin(), image.bytes.end()) != all[sample].bytes;
      }
    });
  }
  readers.clear();
  EXPECT_EQ(wrong, 0);
}

TEST_F(OfRecordTest, ReadingReusesTheCallersMemory) {
  std::vector<Picture> pictures;
  for (const size_t size : {70000, 100, 30000, 69999, 1}) pictures.push_back({1, noise(size, size)});
  write_bytes(path("part-0"), framed(pictures));
  const OfRecordFiles source(path("part-0"), 10, nullptr);
  StoredImage image;
  source.read(0, image);
  const uint8_t* memory = image.bytes.data();
  const size_t capacity = image.bytes.capacity();
  for (int64_t sample = 0; sample < source.size(); ++sample) {
    source.read(sample, image);
    EXPECT_EQ(image.bytes.data(), memory);
    EXPECT_EQ(image.bytes.capacity(), capacity);
  }
}

TEST_F(OfRecordTest, TheIndexTakesEightBytesARecord) {
  std::vector<Picture> pictures(1000, {1, "x"});
  write_bytes(path("part-0"), framed(pictures));
  const OpenFile file(open_to_read(path("part-0")), path("part-0"));
  const RecordIndex index = index_records(file);
  EXPECT_EQ(index.records(), 1000);
  EXPECT_EQ(index.starts.capacity(), 1001u);
  static_assert(sizeof(index.starts[0]) == 8);
}

TEST_F(OfRecordTest, TheFingerprintChangesWithTheParts) {
  write_bytes(path("part-0"), framed(some_pictures(3, 10)));
  const OfRecordFiles before(path(""), 10, nullptr);
  EXPECT_EQ(before.fingerprint(), OfRecordFiles(path(""), 10, nullptr).fingerprint());
  EXPECT_EQ(before.stored_bytes(), static_cast<int64_t>(framed(some_pictures(3, 10)).size()));
  write_bytes(path("part-1"), framed(some_pictures(1, 10)));
  EXPECT_NE(before.fingerprint(), OfRecordFiles(path(""), 10, nullptr).fingerprint());
}

}  // namespace
}  // namespace millrace::data
