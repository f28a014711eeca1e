#include "millrace/data/files/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "data/files/stored_sets.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/cifar.h"
#include "millrace/data/files/image_folder.h"
#include "millrace/data/files/ofrecord.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

class ConvertTest : public StoredSets {
 protected:
  // Not PNG at all, but what is put in comes out: width and height in a byte each, then the pixels.
  static std::vector<uint8_t> encode(const Image& image) {
    std::vector<uint8_t> bytes{0x89,
                               'P',
                               'N',
                               'G',
                               '\r',
                               '\n',
                               0x1A,
                               '\n',
                               static_cast<uint8_t>(image.width),
                               static_cast<uint8_t>(image.height)};
    bytes.insert(bytes.end(), image.pixels.begin(), image.pixels.begin() + image.width * image.height * 3);
    return bytes;
  }
  static void decode(const StoredImage& stored, Image& image) {
    if (stored.bytes.size() < 10) fail_sample("not a picture");
    image.width = stored.bytes[8];
    image.height = stored.bytes[9];
    image.channels = 3;
    image.pixels.assign(stored.bytes.begin() + 10, stored.bytes.end());
  }
  static ConvertOptions to(ImageKind kind, int parts = 0, int threads = 1) {
    ConvertOptions options;
    options.to = kind;
    options.parts = parts;
    options.threads = threads;
    options.decode = decode;
    options.encode_png = encode;
    options.resize_image = [](const Image&, int width, int height, Image& into) {
      into.width = width;
      into.height = height;
      into.channels = 1;
      into.pixels.assign(static_cast<size_t>(width) * height, 77);
    };
    return options;
  }

  // A folder of 3 classes with pictures of both formats.
  std::string make_images(int count = 20) const {
    for (int i = 0; i < count; ++i) {
      const std::string folder = make_folder(std::string("images/") + "abc"[i % 3]);
      const std::string name = folder + "/" + std::to_string(100 + i);
      i % 4 == 3 ? write_bytes(name + ".png", fake_png(i, 50 + i)) : write_bytes(name + ".jpg", fake_jpeg(i, 50 + i));
    }
    return path("images");
  }
  std::string make_cifar(int count = 23) const {
    const std::string folder = make_folder("cifar");
    std::string bytes;
    for (int i = 0; i < count; ++i) bytes += cifar_record({i % 10}, i);
    write_bytes(folder + "/data_batch_1.bin", bytes);
    write_bytes(folder + "/test_batch.bin", cifar_record({4}, 1000) + cifar_record({5}, 1001));
    write_bytes(folder + "/batches.meta.txt", "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n");
    return folder;
  }
  std::string refusal(const ImageSource& source, const std::string& from, const std::string& name,
                      const ConvertOptions& options) const {
    return message_of<std::invalid_argument>([&] { convert(source, from, path(name), options); });
  }
};

TEST_F(ConvertTest, FolderToOfRecordAndBackIsExact) {
  const std::string from = make_images();
  const ImageFolder source(from, 0, nullptr);
  const ConvertResult result = convert(source, from, path("of"), to(ImageKind::OfRecord, 3));
  EXPECT_EQ(result.samples, 20);
  EXPECT_EQ(result.parts, 3);
  const OfRecordFiles records(path("of"), 0, nullptr);
  EXPECT_EQ(records.num_parts(), 3u);
  EXPECT_EQ(result.bytes, records.stored_bytes());
  EXPECT_EQ(read_all(records), read_all(source));
  EXPECT_EQ(records.class_names(), source.class_names());

  convert(records, path("of"), path("back"), to(ImageKind::ImageFolder, 4));
  const ImageFolder back(path("back"), 0, nullptr);
  EXPECT_EQ(read_all(back), read_all(source));
  EXPECT_EQ(back.class_names(), source.class_names());
}

TEST_F(ConvertTest, CifarToOfRecordAndBackKeepsEveryPixel) {
  const std::string from = make_cifar();
  const Cifar source(from, CifarLabels::Ten, true, 0, nullptr);
  convert(source, from, path("of"), to(ImageKind::OfRecord, 2));
  const OfRecordFiles records(path("of"), 0, nullptr);
  EXPECT_EQ(records.class_names(), source.class_names());

  convert(records, path("of"), path("back"), to(ImageKind::Cifar10));
  const Cifar back(path("back"), CifarLabels::Ten, true, 0, nullptr);
  EXPECT_EQ(read_all(back), read_all(source));
  EXPECT_EQ(back.class_names(), source.class_names());
  EXPECT_TRUE(fs::exists(path("back/data_batch_5.bin")));
}

TEST_F(ConvertTest, CifarKeepsBothSplitsInOneFolder) {
  const std::string from = make_cifar();
  ConvertOptions options = to(ImageKind::Cifar10);
  convert(Cifar(from, CifarLabels::Ten, true, 0, nullptr), from, path("copy"), options);
  options.train = false;
  const Cifar test(from, CifarLabels::Ten, false, 0, nullptr);
  convert(test, from, path("copy"), options);
  EXPECT_EQ(Cifar(path("copy"), CifarLabels::Ten, true, 0, nullptr).size(), 23);
  EXPECT_EQ(read_all(Cifar(path("copy"), CifarLabels::Ten, false, 0, nullptr)), read_all(test));
}

TEST_F(ConvertTest, AHundredClassesHaveOneFile) {
  const std::string from = make_images();
  ConvertOptions options = to(ImageKind::Cifar100);
  options.resize = true;
  const ImageFolder source(from, 0, nullptr);
  convert(source, from, path("hundred"), options);
  const Cifar back(path("hundred"), CifarLabels::Hundred, true, 0, nullptr);
  ASSERT_EQ(back.size(), 20);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read(back, i), (Picture{read(source, i).label, std::string(3072, 77)}));
  EXPECT_EQ(back.class_names()[2], "c");
  EXPECT_EQ(back.class_names()[3], "class_3");
}

TEST_F(ConvertTest, RawPixelsBecomeJpegWhereAsked) {
  const std::string from = make_cifar();
  ConvertOptions options = to(ImageKind::OfRecord);
  options.quality = 90;
  options.encode_jpeg = [](const Image&, int quality) {
    return std::vector<uint8_t>{0xFF, 0xD8, 0xFF, static_cast<uint8_t>(quality)};
  };
  convert(Cifar(from, CifarLabels::Ten, true, 0, nullptr), from, path("of"), options);
  EXPECT_EQ(read(OfRecordFiles(path("of"), 0, nullptr), 0).bytes, "\xFF\xD8\xFF\x5A");
}

TEST_F(ConvertTest, ThreadsDoNotChangeAByte) {
  const std::string from = make_images(60);
  const ImageFolder source(from, 0, nullptr);
  for (const ImageKind kind : {ImageKind::OfRecord, ImageKind::ImageFolder}) {
    const std::string name = name_of(kind);
    convert(source, from, path(name + "1"), to(kind, 13, 1));
    convert(source, from, path(name + "4"), to(kind, 13, 4));
    EXPECT_EQ(contents(path(name + "1")), contents(path(name + "4")));
  }
}

TEST_F(ConvertTest, ShufflingIsDrawnFromTheSeed) {
  const std::string from = make_images(60);
  const ImageFolder source(from, 0, nullptr);
  ConvertOptions options = to(ImageKind::OfRecord, 4, 2);
  options.shuffle = true;
  options.seed = 1;
  convert(source, from, path("a"), options);
  convert(source, from, path("b"), options);
  options.seed = 2;
  convert(source, from, path("c"), options);
  const auto pictures = [&](const char* name) { return read_all(OfRecordFiles(path(name), 0, nullptr)); };
  EXPECT_EQ(pictures("a"), pictures("b"));
  EXPECT_NE(pictures("a"), pictures("c"));
  EXPECT_NE(pictures("a"), read_all(source));
  const auto sorted = [](std::vector<Picture> all) {
    std::sort(all.begin(), all.end(), [](const Picture& x, const Picture& y) { return x.bytes < y.bytes; });
    return all;
  };
  EXPECT_EQ(sorted(pictures("c")), sorted(read_all(source)));
}

TEST_F(ConvertTest, AnInterruptedConversionGoesOn) {
  const std::string from = make_images(60);
  const ImageFolder source(from, 0, nullptr);
  for (const ImageKind kind : {ImageKind::OfRecord, ImageKind::ImageFolder}) {
    for (const int threads : {1, 4}) {
      const std::string name = name_of(kind) + std::to_string(threads);
      convert(source, from, path(name + "whole"), to(kind, 7));
      ConvertOptions options = to(kind, 7, threads);
      options.progress = [](int64_t done, int64_t) {
        if (done == 31) throw Interrupted();
      };
      EXPECT_THROW(convert(source, from, path(name), options), Interrupted);
      if (kind == ImageKind::OfRecord) {
        EXPECT_FALSE(fs::exists(path(name + "/part-00006")));
      }
      write_bytes(path(name + "/.part-00001.millrace-tmp123"), "of a killed process");

      int64_t first = 0, last = 0;
      options.progress = [&](int64_t done, int64_t total) {
        if (first == 0) first = done;
        last = done;
        EXPECT_EQ(total, 60);
      };
      const ConvertResult result = convert(source, from, path(name), options);
      if (threads == 1) {
        EXPECT_EQ(result.resumed_parts, 3);  // 31 of 60 are three parts of seven, and some
        EXPECT_EQ(first, 25 + 1);
      }
      EXPECT_EQ(last, 60);
      EXPECT_EQ(result.samples, 60);
      EXPECT_EQ(contents(path(name)), contents(path(name + "whole")));
    }
  }
}

TEST_F(ConvertTest, AKilledConversionGoesOn) {
  const std::string from = make_images(60);
  const ImageFolder source(from, 0, nullptr);
  for (const ImageKind kind : {ImageKind::OfRecord, ImageKind::ImageFolder}) {
    const std::string name = name_of(kind);
    convert(source, from, path(name + "whole"), to(kind, 7));
    const pid_t child = ::fork();
    if (child == 0) {
      ConvertOptions options = to(kind, 7);
      options.progress = [](int64_t done, int64_t) {
        if (done == 31) ::raise(SIGKILL);
      };
      convert(source, from, path(name), options);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(convert(source, from, path(name), to(kind, 7)).resumed_parts, 3);
    EXPECT_EQ(contents(path(name)), contents(path(name + "whole")));
  }
}

TEST_F(ConvertTest, TwoConversionsDoNotShareAFolder) {
  const std::string from = make_images();
  const ImageFolder source(from, 0, nullptr);
  ConvertOptions options = to(ImageKind::OfRecord, 3);
  std::string second;
  options.progress = [&](int64_t, int64_t) { second = refusal(source, from, "of", to(ImageKind::OfRecord, 3)); };
  convert(source, from, path("of"), options);
  EXPECT_THAT(second, HasSubstr("another conversion is writing there"));
}

TEST_F(ConvertTest, AFinishedConversionIsNotRepeated) {
  const std::string from = make_images();
  const ImageFolder source(from, 0, nullptr);
  ConvertOptions options = to(ImageKind::OfRecord, 3);
  convert(source, from, path("of"), options);
  fs::remove(path("of/part-00001"));  // but for what somebody took away
  int calls = 0;
  options.progress = [&](int64_t, int64_t) { ++calls; };
  EXPECT_EQ(convert(source, from, path("of"), options).resumed_parts, 2);
  EXPECT_EQ(calls, 7);
  EXPECT_EQ(convert(source, from, path("of"), options).resumed_parts, 3);
  EXPECT_EQ(calls, 7);
  EXPECT_EQ(read_all(OfRecordFiles(path("of"), 0, nullptr)), read_all(source));
}

TEST_F(ConvertTest, AnotherSourceOrOtherOptionsAreRefused) {
  const std::string from = make_images();
  const ImageFolder source(from, 0, nullptr);
  convert(source, from, path("of"), to(ImageKind::OfRecord, 3));
  EXPECT_THAT(refusal(source, from, "of", to(ImageKind::OfRecord, 4)),
              HasSubstr("was begun by another conversion: options.parts was 3, is 4; repeat that one, or name a new"));
  ConvertOptions shuffled = to(ImageKind::OfRecord, 3);
  shuffled.shuffle = true;
  shuffled.seed = 5;
  EXPECT_THAT(refusal(source, from, "of", shuffled),
              HasSubstr("options.seed was 0, is 5; options.shuffle was false, is true"));
  EXPECT_THAT(refusal(source, from, "of", to(ImageKind::ImageFolder, 3)),
              HasSubstr("options.to was \"ofrecord\", is \"image_folder\""));

  write_bytes(path("images/a/100.jpg"), fake_jpeg(0, 51));  // one byte longer
  EXPECT_THAT(refusal(ImageFolder(from, 0, nullptr), from, "of", to(ImageKind::OfRecord, 3)),
              HasSubstr("source.bytes was"));
  write_bytes(path("images/a/999.jpg"), fake_jpeg(0, 51));
  EXPECT_THAT(refusal(ImageFolder(from, 0, nullptr), from, "of", to(ImageKind::OfRecord, 3)),
              HasSubstr("source.samples was 20, is 21"));
}

TEST_F(ConvertTest, AForeignFolderIsLeftAlone) {
  const std::string from = make_images();
  const ImageFolder source(from, 0, nullptr);
  write_bytes(make_folder("full") + "/thesis.tex", "x");
  EXPECT_THAT(refusal(source, from, "full", to(ImageKind::OfRecord)),
              HasSubstr("full: is not empty and was not begun by a conversion; name a new folder"));
  write_bytes(path("full/convert.json"), "{\"mine\": 1}");
  EXPECT_THAT(refusal(source, from, "full", to(ImageKind::OfRecord)), HasSubstr("is not a conversion's list of parts"));
  write_bytes(path("file"), "x");
  EXPECT_THAT(refusal(source, from, "file", to(ImageKind::OfRecord)), HasSubstr("is a file"));
  EXPECT_EQ(contents(path("full")).size(), 2u);
}

TEST_F(ConvertTest, BadSamplesStopOrAreListed) {
  const std::string from = make_folder("of");
  const auto good = some_pictures(6, 3);
  write_bytes(from + "/part-0", framed({good[0], good[1]}) + framed("\x0A\x7F") + framed({good[2]}));
  write_bytes(from + "/part-1", framed({good[3], {1, "neither"}, good[4], good[5]}));
  const OfRecordFiles source(from, 0, nullptr);
  ConvertOptions options = to(ImageKind::OfRecord, 2);
  const std::string first = from + "/part-0: record 2: its 2 bytes are not an OFRecord";
  EXPECT_THAT(message_of<BadSample>([&] { convert(source, from, path("stop"), options); }), HasSubstr(first));

  options.skip_bad = true;
  const ConvertResult result = convert(source, from, path("skip"), options);
  EXPECT_EQ(result.samples, 6);
  ASSERT_EQ(result.skipped.size(), 2u);
  EXPECT_THAT(result.skipped[0], HasSubstr(first));
  EXPECT_EQ(result.skipped[1],
            from + "/part-1: record 1: neither JPEG nor PNG; convert the picture to one of them first");
  EXPECT_EQ(read_all(OfRecordFiles(path("skip"), 0, nullptr)), good);
  const auto manifest = nlohmann::json::parse(read_bytes(path("skip/convert.json")));
  EXPECT_EQ(manifest["finished"][1]["skipped"][0], result.skipped[1]);
  EXPECT_EQ(convert(source, from, path("skip"), options).skipped, result.skipped);  // also when all was done before
}

TEST_F(ConvertTest, CifarHoldsOnePictureSize) {
  const std::string from = make_folder("of");
  Image image{.width = 5, .height = 4, .channels = 3, .pixels = std::vector<uint8_t>(60, 1)};
  const auto bytes = encode(image);
  write_bytes(from + "/part-0", framed({{1, std::string(bytes.begin(), bytes.end())}}));
  const OfRecordFiles source(from, 0, nullptr);
  EXPECT_EQ(refusal(source, from, "ten", to(ImageKind::Cifar10)),
            from +
                "/part-0: record 0: the picture is 5x4, CIFAR holds 32x32; add --resize, or convert to ofrecord or "
                "image_folder");
  ConvertOptions options = to(ImageKind::Cifar10);
  options.resize = true;
  convert(source, from, path("resized"), options);
  EXPECT_EQ(read(Cifar(path("resized"), CifarLabels::Ten, true, 0, nullptr), 0), (Picture{1, std::string(3072, 77)}));
}

TEST_F(ConvertTest, LabelsHaveToFitTheTarget) {
  const std::string from = make_folder("of");
  write_bytes(from + "/part-0", framed({{10, fake_png(1, 5)}}));
  const OfRecordFiles source(from, 0, nullptr);
  ConvertOptions options = to(ImageKind::Cifar10);
  options.resize = true;
  EXPECT_EQ(refusal(source, from, "ten", options), from + "/part-0: record 0: label 10, CIFAR-10 has classes 0-9");
  write_bytes(from + "/classes.txt", "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
  EXPECT_THAT(refusal(OfRecordFiles(from, 0, nullptr), from, "eleven", options),
              HasSubstr("11 classes, cifar10 holds 10"));
  EXPECT_FALSE(fs::exists(path("eleven")));
}

TEST_F(ConvertTest, ClassesWithoutUsableNamesAreNumbered) {
  const std::string from = make_folder("of");
  const auto pictures = some_pictures(24, 12);
  write_bytes(from + "/part-0", framed(pictures));
  convert(OfRecordFiles(from, 0, nullptr), from, path("plain"), to(ImageKind::ImageFolder));
  EXPECT_EQ(ImageFolder(path("plain"), 0, nullptr).class_names()[10], "00010");
  // In the order of their labels these names are not sorted: the labels count more.
  write_bytes(from + "/classes.txt", "l\nk\nj\ni\nh\ng\nf\ne\nd\nc\nb\na\n");
  convert(OfRecordFiles(from, 0, nullptr), from, path("named"), to(ImageKind::ImageFolder));
  const ImageFolder back(path("named"), 0, nullptr);
  EXPECT_EQ(back.class_names()[0], "00000");
  EXPECT_EQ(back.size(), 24);
}

TEST_F(ConvertTest, AMissingClassWouldRenumberAnImageFolder) {
  const std::string from = make_folder("of");
  write_bytes(from + "/part-0", framed({{0, fake_png(1, 5)}, {2, fake_png(2, 5)}}));
  EXPECT_THAT(refusal(OfRecordFiles(from, 0, nullptr), from, "folder", to(ImageKind::ImageFolder)),
              HasSubstr("00001: class 1 has no picture"));
}

}  // namespace
}  // namespace millrace::data
