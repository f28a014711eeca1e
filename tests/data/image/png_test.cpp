#include "millrace/data/image/png.h"

#include <gtest/gtest.h>

#include "data/image/test_pictures.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

using Bytes = std::vector<uint8_t>;

Image decode_all(const Bytes& bytes, int channels) {
  Image image;
  decode_png(bytes, channels, image);
  return image;
}

Image decode_file(const char* name, int channels) { return decode_all(read_bytes(corpus() / "png" / name), channels); }

TEST(Png, WhatIsWrittenIsReadBackExactly) {
  for (const int channels : {1, 3}) {
    const Image image = test_picture(61, 47, channels, 5);
    const Bytes bytes = encode_png(image);
    const PngHeader header = read_png_header(bytes);
    EXPECT_EQ(header.width, 61);
    EXPECT_EQ(header.height, 47);
    EXPECT_EQ(header.gray, channels == 1);
    EXPECT_FALSE(header.alpha || header.deep);
    EXPECT_EQ(decode_all(bytes, channels).pixels, image.pixels);
  }
}

// The files of the corpus hold the same picture in other ways.
TEST(Png, InterlacedAndSixteenBitsAreTheSamePicture) {
  const Image rgb = decode_file("rgb.png", 3), gray = decode_file("gray.png", 1);
  EXPECT_EQ(decode_file("rgb_interlaced.png", 3).pixels, rgb.pixels);
  EXPECT_EQ(decode_file("rgb_16.png", 3).pixels, rgb.pixels);
  EXPECT_EQ(decode_file("gray_16.png", 1).pixels, gray.pixels);
}

TEST(Png, WhatIsTransparentLiesOverBlack) {
  const Image rgb = decode_file("rgb.png", 3), over = decode_file("rgba.png", 3);
  for (int i = 0; i < 24 * 20; ++i) {  // alpha is the pixel's number
    for (int c = 0; c < 3; ++c) ASSERT_NEAR(over.pixels[3 * i + c], rgb.pixels[3 * i + c] * (i % 256) / 255.0, 0.51);
  }
  const Image gray = decode_file("gray.png", 1), gray_over = decode_file("gray_alpha.png", 1);
  for (int i = 0; i < 24 * 20; ++i) ASSERT_NEAR(gray_over.pixels[i], gray.pixels[i] * (255 - i % 256) / 255.0, 0.51);
}

TEST(Png, PalettesAndFewBitsAreExpanded) {
  const Image palette = decode_file("palette.png", 3), transparent = decode_file("palette_transparent.png", 3);
  for (int y = 0; y < 20; ++y) {
    for (int x = 0; x < 24; ++x) {
      const int k = (x + y) % 16;
      const int alpha = std::vector<int>{0, 80, 160, 255}[std::min(k, 3)];
      const int expected[] = {k * 16, 255 - k * 13, k * k};
      for (int c = 0; c < 3; ++c) {
        ASSERT_EQ(palette.row(y)[3 * x + c], expected[c]);
        ASSERT_NEAR(transparent.row(y)[3 * x + c], expected[c] * alpha / 255.0, 0.51);
      }
    }
  }
  for (const uint8_t level : decode_file("gray_1.png", 1).pixels) ASSERT_TRUE(level == 0 || level == 255);
}

TEST(Png, GreyBecomesRgbAndRgbGrey) {
  const Image gray = decode_file("gray.png", 1), wide = decode_file("gray.png", 3);
  for (size_t i = 0; i < wide.pixels.size(); ++i) ASSERT_EQ(wide.pixels[i], gray.pixels[i / 3]);
  const Image rgb = decode_file("rgb.png", 3), narrow = decode_file("rgb.png", 1);
  for (size_t i = 0; i < narrow.pixels.size(); ++i) {
    ASSERT_EQ(narrow.pixels[i], luma(rgb.pixels[3 * i], rgb.pixels[3 * i + 1], rgb.pixels[3 * i + 2]));
  }
}

TEST(Png, TruncatedFilesAreRefused) {
  for (const auto& entry : std::filesystem::directory_iterator(corpus() / "png")) {
    const Bytes whole = read_bytes(entry);
    EXPECT_NO_THROW(decode_all(whole, 3)) << entry.path();
    for (size_t size = 0; size < whole.size(); size += 10) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_THROW(decode_all(cut, 3), BadSample) << entry.path() << " " << size;
    }
  }
}

TEST(Png, DamagedPixelsAreRefused) {
  const Bytes whole = encode_png(test_picture(61, 47, 3, 5));
  for (size_t at = 60; at + 20 < whole.size(); at += 97) {
    Bytes bytes = whole;
    bytes[at] ^= 0x10;
    EXPECT_THROW(decode_all(bytes, 3), BadSample) << at;
  }
}

}  // namespace
}  // namespace millrace::data
