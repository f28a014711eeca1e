#include "millrace/data/image/jpeg.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "data/image/test_pictures.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

using Bytes = std::vector<uint8_t>;

Rect all_of(const JpegHeader& header) { return {0, 0, header.width, header.height}; }

Image decode_all(const Bytes& bytes, int eighths = 8, int channels = 3) {
  JpegDecoder decoder;
  Image image;
  decoder.decode(all_of(decoder.open(bytes)), eighths, channels, image);
  return image;
}

double mean_difference(const Image& a, const Image& b) {
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.height, b.height);
  const size_t count = static_cast<size_t>(a.width) * a.height * a.channels;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::abs(a.pixels[i] - b.pixels[i]);
  return sum / static_cast<double>(count);
}

std::vector<JpegOptions> kinds() {
  std::vector<JpegOptions> all;
  for (const Chroma chroma : {Chroma::Full, Chroma::HalfWidth, Chroma::Half}) {
    for (const bool progressive : {false, true}) all.push_back({.chroma = chroma, .progressive = progressive});
  }
  all.push_back({.arithmetic = true});
  return all;
}

// What is wrong with the file, as told when this part is decoded; nothing if it is accepted.
std::optional<std::string> verdict(JpegDecoder& decoder, const Bytes& bytes, const Rect& part, int eighths) {
  Image image;
  try {
    decoder.open(bytes);
    decoder.decode(part, eighths, 3, image);
  } catch (const BadSample& bad) {
    return bad.what();
  }
  return {};
}

std::optional<std::string> verify_verdict(JpegDecoder& decoder, const Bytes& bytes) {
  try {
    decoder.open(bytes);
    decoder.verify(3);
  } catch (const BadSample& bad) {
    return bad.what();
  }
  return {};
}

TEST(Jpeg, WhatIsWrittenIsReadBack) {
  for (const int channels : {1, 3}) {
    const Image image = test_picture(61, 47, channels, 5);
    for (JpegOptions options : kinds()) {
      options.quality = 96;
      const Image back = decode_all(encode_jpeg(image, options), 8, channels);
      ASSERT_EQ(back.channels, channels);
      EXPECT_LT(mean_difference(image, back), 4);
    }
  }
}

TEST(Jpeg, HeaderTellsSizeAndColours) {
  JpegDecoder decoder;
  const JpegHeader color = decoder.open(encode_jpeg(test_picture(61, 47, 3, 5), 90));
  EXPECT_EQ(color.width, 61);
  EXPECT_EQ(color.height, 47);
  EXPECT_EQ(color.color, JpegColor::Rgb);
  EXPECT_EQ(decoder.open(encode_jpeg(test_picture(8, 8, 1, 5), 90)).color, JpegColor::Gray);
  EXPECT_EQ(decoder.open(read_bytes(corpus() / "jpeg/cmyk.jpg")).color, JpegColor::Cmyk);
  EXPECT_EQ(decoder.open(read_bytes(corpus() / "jpeg/ycck_adobe.jpg")).color, JpegColor::Cmyk);
  EXPECT_EQ(decoder.open(read_bytes(corpus() / "jpeg/rgb_stored.jpg")).color, JpegColor::Rgb);
}

TEST(Jpeg, APartHasThePixelsOfTheWhole) {
  const std::vector<Rect> parts{{0, 0, 1, 1},     {17, 9, 50, 40},   {64, 48, 32, 32},
                                {150, 110, 9, 9}, {0, 100, 159, 19}, {80, 0, 79, 119},
                                {158, 118, 1, 1}, {16, 16, 16, 16},  {33, 5, 1, 114}};
  JpegDecoder decoder;
  for (const int channels : {1, 3}) {
    for (const JpegOptions& options : kinds()) {
      const Bytes bytes = encode_jpeg(test_picture(159, 119, channels, 7), options);
      for (int eighths = 1; eighths <= 8; ++eighths) {
        const Image whole = decode_all(bytes, eighths, channels);
        for (const Rect& part : parts) {
          Image image;
          decoder.open(bytes);
          const Rect held = decoder.decode(part, eighths, channels, image);
          ASSERT_EQ(image.width, held.width);
          ASSERT_EQ(image.height, held.height);
          const int left = part.left * eighths / 8, top = part.top * eighths / 8;
          const int right = std::min((part.right() * eighths + 7) / 8, whole.width);
          const int bottom = std::min((part.bottom() * eighths + 7) / 8, whole.height);
          ASSERT_LE(held.left, left);
          ASSERT_LE(held.top, top);
          ASSERT_GE(held.right(), right);
          ASSERT_GE(held.bottom(), bottom);
          for (int y = top; y < bottom; ++y) {
            for (int i = left * channels; i < right * channels; ++i) {
              ASSERT_EQ(image.row(y - held.top)[i - held.left * channels], whole.row(y)[i])
                  << "row " << y << ", " << eighths << "/8";
            }
          }
        }
      }
    }
  }
}

TEST(Jpeg, OnlyWhatIsAskedForIsDecoded) {
  const Bytes bytes = encode_jpeg(test_picture(400, 300, 3, 7), 90);
  JpegDecoder decoder;
  Image image;
  decoder.open(bytes);
  const Rect held = decoder.decode({200, 100, 50, 40}, 4, 3, image);
  EXPECT_EQ(held.height, 20);
  EXPECT_LE(held.width, 25 + 2 + 2 + 8);  // a margin on each side, and back to a whole block
}

TEST(Jpeg, TruncatedFilesAreRefused) {
  std::vector<Bytes> files;
  for (const auto& entry : std::filesystem::directory_iterator(corpus() / "jpeg")) files.push_back(read_bytes(entry));
  for (const JpegOptions& options : kinds()) files.push_back(encode_jpeg(test_picture(90, 70, 3, 11), options));
  ASSERT_GE(files.size(), 10u);
  JpegDecoder decoder;
  for (const Bytes& whole : files) {
    EXPECT_EQ(verify_verdict(decoder, whole), std::nullopt);
    EXPECT_EQ(verdict(decoder, whole, {0, 0, 24, 20}, 8), std::nullopt);
    for (size_t size = 0; size < whole.size(); size += 10) {
      // A block of memory of exactly this size, so that the sanitizer sees a read beyond it.
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_NE(verdict(decoder, cut, {0, 0, 4, 4}, 8), std::nullopt) << size << " of " << whole.size();
      EXPECT_NE(verify_verdict(decoder, cut), std::nullopt) << size << " of " << whole.size();
    }
  }
}

TEST(Jpeg, AScanThatEndsEarlyIsRefused) {
  const Bytes whole = encode_jpeg(test_picture(90, 70, 3, 11), 90);
  Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(whole.size() * 3 / 4));
  cut.insert(cut.end(), {0xFF, 0xD9});
  JpegDecoder decoder;
  const auto said = verdict(decoder, cut, {0, 0, 8, 8}, 8);
  ASSERT_TRUE(said);
  EXPECT_EQ(*said, "JPEG: Corrupt JPEG data: premature end of data segment");
}

TEST(Jpeg, BytesThatNothingNeedsArePassedOver) {
  const Image image = test_picture(40, 30, 3, 11);
  Bytes padded = encode_jpeg(image, 90);
  const Image before = decode_all(padded);
  padded.insert(padded.end() - 2, {1, 2, 3, 4, 5});  // before the end marker
  padded.insert(padded.end(), 20, 0);                // and after it
  EXPECT_EQ(mean_difference(before, decode_all(padded)), 0);
}

TEST(Jpeg, VerdictDependsOnTheFileAlone) {
  JpegDecoder decoder;
  int refused = 0, accepted = 0;
  for (const JpegOptions& options : kinds()) {
    const Bytes whole = encode_jpeg(test_picture(90, 70, 3, 13), options);
    for (uint64_t trial = 0; trial < 150; ++trial) {
      Bytes bytes = whole;
      const RandomBlock words = RandomStream(17, trial, 0).at(0);
      bytes[words[0] % bytes.size()] ^= static_cast<uint8_t>(1 + words[1] % 255);
      const auto expected = verify_verdict(decoder, bytes);
      ++(expected ? refused : accepted);
      EXPECT_EQ(verdict(decoder, bytes, {0, 0, 8, 8}, 8), expected);
      EXPECT_EQ(verdict(decoder, bytes, {0, 0, 90, 70}, 8), expected);
      EXPECT_EQ(verdict(decoder, bytes, {30, 30, 20, 20}, 4), expected);
      EXPECT_EQ(verdict(decoder, bytes, {80, 60, 10, 10}, 1), expected);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 100);  // most flips inside a scan are valid codes for other pixels
}

TEST(Jpeg, RandomBytesAreRefused) {
  JpegDecoder decoder;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const RandomStream random(19, trial, 0);
    Bytes bytes(random.at(0)[0] % 500);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.at(i + 1)[0]);
    if (trial % 2 == 0 && bytes.size() > 3) bytes[0] = 0xFF, bytes[1] = 0xD8, bytes[2] = 0xFF;
    EXPECT_NE(verify_verdict(decoder, bytes), std::nullopt);
  }
}

TEST(Jpeg, ABrokenFileLeavesTheDecoderUsable) {
  const Bytes good = encode_jpeg(test_picture(90, 70, 3, 11), 90);
  const Bytes bad(good.begin(), good.begin() + 600);
  JpegDecoder decoder;
  Image image;
  EXPECT_NE(verdict(decoder, bad, {0, 0, 90, 70}, 8), std::nullopt);
  decoder.decode(all_of(decoder.open(good)), 8, 3, image);
  EXPECT_EQ(mean_difference(image, decode_all(good)), 0);
  decoder.open(good);  // opened and left
  decoder.decode(all_of(decoder.open(good)), 8, 3, image);
  EXPECT_EQ(mean_difference(image, decode_all(good)), 0);
}

TEST(Jpeg, TablesOfOneFileDoNotServeAnother) {
  const Bytes good = encode_jpeg(test_picture(90, 70, 1, 11), 90);
  size_t table = 0;
  while (!(good[table] == 0xFF && good[table + 1] == 0xDB)) ++table;
  Bytes without = good;
  without.erase(without.begin() + static_cast<std::ptrdiff_t>(table),
                without.begin() + static_cast<std::ptrdiff_t>(table) + 2 + 67);
  JpegDecoder decoder;
  const auto alone = verdict(decoder, without, {0, 0, 90, 70}, 8);
  ASSERT_TRUE(alone);
  EXPECT_EQ(verdict(decoder, good, {0, 0, 90, 70}, 8), std::nullopt);
  EXPECT_EQ(verdict(decoder, without, {0, 0, 90, 70}, 8), alone);
}

// A grey file whose header speaks of three components, of which only the first has a scan.
TEST(Jpeg, AComponentWithoutDataIsRefused) {
  Bytes bytes = encode_jpeg(test_picture(24, 20, 1, 11), 90);
  size_t frame = 0;
  while (!(bytes[frame] == 0xFF && bytes[frame + 1] == 0xC0)) ++frame;
  bytes[frame + 3] = 17;  // the header's length
  bytes[frame + 9] = 3;
  const Bytes more{2, 0x11, 0, 3, 0x11, 0};
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(frame) + 13, more.begin(), more.end());
  JpegDecoder decoder;
  EXPECT_EQ(decoder.open(bytes).color, JpegColor::Rgb);
  EXPECT_EQ(verdict(decoder, bytes, {0, 0, 24, 20}, 8), "JPEG: a colour component has no data");
  EXPECT_EQ(verify_verdict(decoder, bytes), "JPEG: a colour component has no data");
}

TEST(Jpeg, CmykBecomesRgb) {
  for (const char* name : {"cmyk.jpg", "cmyk_adobe.jpg", "ycck_adobe.jpg"}) {  // all of ink 0, 100, 200, 20
    const Bytes bytes = read_bytes(corpus() / "jpeg" / name);
    const Image image = decode_all(bytes);
    ASSERT_EQ(image.width, 24) << name;
    EXPECT_NEAR(image.row(10)[30], 255 * 235 / 255, 4) << name;
    EXPECT_NEAR(image.row(10)[31], 155 * 235 / 255, 4) << name;
    EXPECT_NEAR(image.row(10)[32], 55 * 235 / 255, 4) << name;
    const Image gray = decode_all(bytes, 8, 1);
    EXPECT_NEAR(gray.row(10)[10], 0.299 * 235 + 0.587 * 143 + 0.114 * 51, 4) << name;
  }
}

TEST(Jpeg, GreyBecomesRgbAndRgbGrey) {
  const Bytes bytes = encode_jpeg(test_picture(30, 20, 1, 2), 90);
  const Image gray = decode_all(bytes, 8, 1), rgb = decode_all(bytes, 8, 3);
  for (int i = 0; i < 30 * 20; ++i) {
    for (int c = 0; c < 3; ++c) ASSERT_EQ(rgb.pixels[i * 3 + c], gray.pixels[i]);
  }
  const Bytes color = encode_jpeg(test_picture(30, 20, 3, 2), {.chroma = Chroma::Full});
  const Image from = decode_all(color, 8, 3), to = decode_all(color, 8, 1);
  for (int i = 0; i < 30 * 20; ++i) {
    ASSERT_NEAR(to.pixels[i], luma(from.pixels[3 * i], from.pixels[3 * i + 1], from.pixels[3 * i + 2]), 8);
  }
}

// A kilobyte of empty scans of a large picture would otherwise take as long as as many real ones.
TEST(Jpeg, EndlessScansAreRefused) {
  const Bytes whole = encode_jpeg(test_picture(16, 16, 1, 2), {.progressive = true});
  size_t scan = whole.size();  // the last one: from its marker to the end marker
  while (scan > 0 && !(whole[scan - 2] == 0xFF && whole[scan - 1] == 0xDA)) --scan;
  ASSERT_GT(scan, 2u);
  const Bytes last(whole.begin() + static_cast<std::ptrdiff_t>(scan) - 2, whole.end() - 2);
  Bytes bytes(whole.begin(), whole.end() - 2);
  for (int i = 0; i < 300; ++i) bytes.insert(bytes.end(), last.begin(), last.end());
  bytes.insert(bytes.end(), {0xFF, 0xD9});
  JpegDecoder decoder;
  EXPECT_NE(verify_verdict(decoder, bytes), std::nullopt);
}

TEST(Jpeg, APictureWithoutPixelsIsNotWritten) {
  Image empty;
  EXPECT_THROW(encode_jpeg(empty, 90), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::data
