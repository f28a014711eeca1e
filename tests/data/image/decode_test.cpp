#include "millrace/data/image/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/image/test_pictures.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

using Bytes = std::vector<uint8_t>;
using testing::HasSubstr;

Bytes file(const char* name) { return read_bytes(corpus() / name); }

// Why the file is refused; empty if it is not.
std::string refusal(const Bytes& bytes, int channels, Color color) {
  Image image;
  try {
    decode_picture(bytes, channels, color, image);
  } catch (const BadSample& bad) {
    return bad.what();
  }
  EXPECT_EQ(image.channels, channels);
  return {};
}

TEST(Decode, FirstBytesTellTheFormat) {
  EXPECT_EQ(picture_format(file("jpeg/gray.jpg")), PictureFormat::Jpeg);
  EXPECT_EQ(picture_format(file("png/gray.png")), PictureFormat::Png);
  EXPECT_EQ(refusal({'G', 'I', 'F', '8', '9', 'a', 1, 0, 9, 9}, 3, Color::Strict),
            "neither JPEG nor PNG: it starts with 47 49 46 38 39 61 01 00, not with FF D8 FF or 89 50 4E 47");
  EXPECT_EQ(refusal({}, 3, Color::Strict), "an empty file where a JPEG or PNG is expected");
  EXPECT_THAT(refusal({0xFF}, 3, Color::Strict), HasSubstr("it starts with FF,"));
}

TEST(Decode, StrictRefusesWhatWouldHaveToBeConverted) {
  EXPECT_EQ(refusal(file("jpeg/gray.jpg"), 3, Color::Strict),
            "grayscale JPEG where 3 channels are needed; write data.color: convert to turn it into RGB");
  EXPECT_EQ(refusal(file("jpeg/rgb_420.jpg"), 1, Color::Strict),
            "colour JPEG where 1 channel is needed; write data.color: convert to turn it into grey");
  for (const char* name : {"jpeg/cmyk.jpg", "jpeg/cmyk_adobe.jpg", "jpeg/ycck_adobe.jpg"}) {
    EXPECT_THAT(refusal(file(name), 3, Color::Strict), HasSubstr("CMYK JPEG"));
  }
  EXPECT_THAT(refusal(file("png/rgba.png"), 3, Color::Strict), HasSubstr("transparent PNG"));
  EXPECT_THAT(refusal(file("png/palette_transparent.png"), 3, Color::Strict), HasSubstr("transparent PNG"));
  EXPECT_THAT(refusal(file("png/rgb_16.png"), 3, Color::Strict), HasSubstr("16 bits"));
  EXPECT_THAT(refusal(file("png/gray.png"), 3, Color::Strict), HasSubstr("grayscale PNG"));
  EXPECT_THAT(refusal(file("png/rgb.png"), 1, Color::Strict), HasSubstr("colour PNG"));
}

TEST(Decode, StrictAcceptsWhatLosesNothing) {
  for (const char* name : {"jpeg/rgb_420.jpg", "jpeg/rgb_stored.jpg", "jpeg/progressive.jpg", "png/rgb.png",
                           "png/palette.png", "png/rgb_interlaced.png"}) {
    EXPECT_EQ(refusal(file(name), 3, Color::Strict), "") << name;
  }
  for (const char* name : {"jpeg/gray.jpg", "png/gray.png", "png/gray_1.png"}) {
    EXPECT_EQ(refusal(file(name), 1, Color::Strict), "") << name;
  }
}

TEST(Decode, ConvertAcceptsEveryFileOfTheCorpus) {
  int files = 0;
  for (const char* folder : {"jpeg", "png"}) {
    for (const auto& entry : std::filesystem::directory_iterator(corpus() / folder)) {
      for (const int channels : {1, 3}) {
        EXPECT_EQ(refusal(read_bytes(entry), channels, Color::Convert), "") << entry.path();
        ++files;
      }
    }
  }
  EXPECT_GT(files, 30);
}

TEST(Decode, HugePicturesAreRefusedBeforeMemoryIsTaken) {
  Bytes jpeg = file("jpeg/rgb_420.jpg");
  size_t frame = 0;
  while (!(jpeg[frame] == 0xFF && jpeg[frame + 1] == 0xC0)) ++frame;
  for (int i = 5; i < 9; ++i) jpeg[frame + i] = 0xF0;  // 61,680 x 61,680
  EXPECT_THAT(refusal(jpeg, 3, Color::Strict), HasSubstr("JPEG of 61680x61680 pixels: at most 65500 pixels a side"));

  Image wide;
  wide.reshape(70'000, 1, 1);
  EXPECT_THAT(refusal(encode_png(wide), 1, Color::Strict), HasSubstr("PNG of 70000x1 pixels: at most 65500"));
}

TEST(Decode, VerifyAgreesWithDecode) {
  Decoder decoder;
  Image image;
  for (const char* name : {"jpeg/rgb_420.jpg", "png/rgb.png"}) {
    const Bytes whole = file(name);
    for (size_t size = 3; size <= whole.size(); ++size) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      const std::string expected = refusal(cut, 3, Color::Strict);
      EXPECT_EQ(expected.empty(), size == whole.size()) << name << " " << size;
      try {
        decoder.open(cut, 3, Color::Strict);
        decoder.verify(image);
        EXPECT_EQ(expected, "");
      } catch (const BadSample& bad) {
        EXPECT_EQ(expected, bad.what());
      }
    }
  }
}

}  // namespace
}  // namespace millrace::data
