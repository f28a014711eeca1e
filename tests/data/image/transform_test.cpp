#include "millrace/data/image/transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "data/image/test_pictures.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

using job::Transform;
using job::TransformKind;

const std::vector<float> kMean{123.675f, 116.28f, 103.53f}, kStd{58.395f, 57.12f, 57.375f};
const Transform kRandom{.kind = TransformKind::RandomResizedCrop};
const std::vector<float> kZero{0, 0, 0}, kOne{1, 1, 1};

StoredImage stored(std::vector<uint8_t> bytes) { return {.bytes = std::move(bytes)}; }

StoredImage raw_planes(const Image& image) {
  StoredImage planes;
  planes.raw_size = image.width;
  for (int c = 0; c < image.channels; ++c) {
    for (int i = 0; i < image.width * image.height; ++i) planes.bytes.push_back(image.pixels[i * image.channels + c]);
  }
  return planes;
}

ImageTransform levels(const Transform& transform, int size, int channels = 3, Color color = Color::Strict) {
  const auto count = static_cast<size_t>(channels);
  return {transform, size, channels, std::span(kZero).first(count), std::span(kOne).first(count), color, 99};
}

std::vector<float> applied(const ImageTransform& transform, const StoredImage& image, int64_t epoch, int64_t sample,
                           size_t elements) {
  ImageTransform::Scratch scratch;
  std::vector<float> out(elements, -1000.f);
  transform.apply(image, epoch, sample, scratch, out.data());
  return out;
}

// Verdicts of apply() in several epochs and of check(); they must agree.
std::optional<std::string> verdict(const ImageTransform& transform, const StoredImage& image, size_t elements) {
  ImageTransform::Scratch scratch;
  std::vector<float> out(elements);
  const auto said = [](const auto& what) -> std::optional<std::string> {
    try {
      what();
    } catch (const BadSample& bad) {
      return bad.what();
    }
    return {};
  };
  const auto checked = said([&] { transform.check(image, scratch); });
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    EXPECT_EQ(said([&] { transform.apply(image, epoch, 5, scratch, out.data()); }), checked);
  }
  return checked;
}

TEST(ImageTransform, PadCropIsAShiftWithBlackAround) {
  const Image image = test_picture(32, 32, 3, 4);
  const Transform pad{.kind = TransformKind::PadCrop, .pad = 4};
  const ImageTransform transform(pad, 32, 3, kMean, kStd, Color::Strict, 99);
  const Normalization normalization(kMean, kStd);
  int mirrored = 0;
  for (int64_t sample = 0; sample < 40; ++sample) {
    const CropBox crop = choose_crop(32, 32, 32, pad, 99, 3, sample);
    mirrored += crop.mirror;
    const auto out = applied(transform, raw_planes(image), 3, sample, 3 * 32 * 32);
    for (int c = 0; c < 3; ++c) {
      for (int y = 0; y < 32; ++y) {
        for (int x = 0; x < 32; ++x) {
          const int from_x = static_cast<int>(crop.box.left) + (crop.mirror ? 31 - x : x);
          const int from_y = static_cast<int>(crop.box.top) + y;
          const bool inside = from_x >= 0 && from_x < 32 && from_y >= 0 && from_y < 32;
          const float level = inside ? image.row(from_y)[3 * from_x + c] : 0;
          ASSERT_EQ(out[(c * 32 + y) * 32 + x], level * normalization.scale[c] + normalization.offset[c]);
          ASSERT_NEAR(out[(c * 32 + y) * 32 + x], (level - kMean[c]) / kStd[c], 1e-5);
        }
      }
    }
  }
  EXPECT_GT(mirrored, 8);
  EXPECT_LT(mirrored, 32);
}

TEST(ImageTransform, PadCropOfAFileIsThatOfItsPixels) {
  const Image image = test_picture(32, 32, 3, 4);
  const ImageTransform transform = levels({.kind = TransformKind::PadCrop, .pad = 4}, 32);
  const auto bytes = encode_jpeg(image, 90);
  Image decoded;
  decode_picture(bytes, 3, Color::Strict, decoded);
  for (int64_t sample = 0; sample < 20; ++sample) {
    EXPECT_EQ(applied(transform, stored(encode_png(image)), 0, sample, 3 * 32 * 32),
              applied(transform, raw_planes(image), 0, sample, 3 * 32 * 32));
    EXPECT_EQ(applied(transform, stored(bytes), 0, sample, 3 * 32 * 32),
              applied(transform, raw_planes(decoded), 0, sample, 3 * 32 * 32));
  }
}

TEST(ImageTransform, PadCropRefusesPicturesThatAreTooSmall) {
  const ImageTransform transform = levels({.kind = TransformKind::PadCrop, .pad = 4}, 32);
  EXPECT_NE(verdict(transform, raw_planes(test_picture(20, 20, 3, 1)), 3 * 32 * 32), std::nullopt);
  EXPECT_NE(verdict(transform, stored(encode_jpeg(test_picture(20, 20, 3, 1), 90)), 3 * 32 * 32), std::nullopt);
}

TEST(ImageTransform, CenterCropIsTheMiddleOfTheResizedPicture) {
  const Image image = test_picture(150, 100, 3, 6);
  const ImageTransform transform = levels({.kind = TransformKind::CenterCrop, .short_side = 40, .mirror = 0}, 32);
  const auto out = applied(transform, stored(encode_png(image)), 0, 0, 3 * 32 * 32);
  std::vector<float> resized(3 * 60 * 40);
  Resampler().resample(image, {0, 0, 150, 100}, {0, 0, 150, 100}, false, 60, 40, {}, resized.data());
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < 32; ++y) {
      for (int x = 0; x < 32; ++x) {
        ASSERT_NEAR(out[(c * 32 + y) * 32 + x], resized[(c * 40 + y + 4) * 60 + x + 14], 1e-3);
      }
    }
  }
}

TEST(ImageTransform, RandomResizedCropIsCutThenResized) {
  const Image image = test_picture(90, 70, 3, 6);
  const ImageTransform transform = levels(kRandom, 32);
  for (int64_t sample = 0; sample < 20; ++sample) {
    const CropBox crop = choose_crop(90, 70, 32, kRandom, 99, 1, sample);
    const Rect cut{static_cast<int>(crop.box.left), static_cast<int>(crop.box.top), static_cast<int>(crop.box.width),
                   static_cast<int>(crop.box.height)};
    std::vector<float> expected(3 * 32 * 32);
    if (cut.width == 32 && cut.height == 32) continue;
    Resampler().resample(image, cut, crop.box, crop.mirror, 32, 32, {}, expected.data());
    EXPECT_EQ(applied(transform, stored(encode_png(image)), 1, sample, expected.size()), expected);
  }
}

// Decoding at a reduced size averages pixels with another filter than decoding whole and resizing. Over pictures with
// edges and fine texture, of all chroma subsamplings, the difference is half a level of 255 on average, 17 at the
// sharpest edge.
TEST(ImageTransform, ReducedDecodingIsCloseToWhole) {
  const int size = 64;
  double mean = 0, max = 0;
  int64_t count = 0, reduced = 0;
  JpegDecoder decoder;
  Image image;
  for (uint64_t number = 0; number < 4; ++number) {
    const Image picture = test_picture(420, 340, 3, 40 + number);
    for (const Chroma chroma : {Chroma::Full, Chroma::HalfWidth, Chroma::Half}) {
      for (const bool progressive : {false, true}) {
        const StoredImage file = stored(encode_jpeg(picture, {.chroma = chroma, .progressive = progressive}));
        const Transform random{.kind = TransformKind::RandomResizedCrop, .mirror = 0};
        const ImageTransform transform = levels(random, size);
        for (int64_t sample = 0; sample < 6; ++sample) {
          const CropBox crop = choose_crop(420, 340, size, random, 99, 0, sample);
          if (reduction(crop.box, size) == 8) continue;
          ++reduced;
          const Rect cut{static_cast<int>(crop.box.left), static_cast<int>(crop.box.top),
                         static_cast<int>(crop.box.width), static_cast<int>(crop.box.height)};
          decoder.open(file.bytes);
          decoder.decode({0, 0, 420, 340}, 8, 3, image);
          std::vector<float> whole(static_cast<size_t>(3) * size * size);
          Resampler().resample(image, cut, crop.box, false, size, size, {}, whole.data());
          const auto out = applied(transform, file, 0, sample, whole.size());
          for (size_t i = 0; i < out.size(); ++i, ++count) {
            const double difference = std::abs(out[i] - whole[i]);
            mean += difference;
            max = std::max(max, difference);
          }
        }
      }
    }
  }
  mean /= static_cast<double>(count);
  RecordProperty("mean_difference", std::to_string(mean));
  RecordProperty("max_difference", std::to_string(max));
  EXPECT_GT(reduced, 50);
  EXPECT_LT(mean, 0.8);
  EXPECT_LT(max, 20);
}

TEST(ImageTransform, EpochAndSampleDecideAlone) {
  const StoredImage file = stored(encode_jpeg(test_picture(90, 70, 3, 6), 90));
  const ImageTransform transform = levels(kRandom, 32);
  ImageTransform::Scratch scratch;
  std::vector<float> first(3 * 32 * 32), other(first.size());
  transform.apply(file, 2, 3, scratch, first.data());
  transform.apply(file, 2, 4, scratch, other.data());
  EXPECT_NE(first, other);
  transform.apply(file, 3, 3, scratch, other.data());
  EXPECT_NE(first, other);
  transform.apply(file, 2, 3, scratch, other.data());  // whatever was done in between
  EXPECT_EQ(first, other);
}

TEST(ImageTransform, PictureIsTheSameCropAsBytes) {
  const StoredImage file = stored(encode_jpeg(test_picture(90, 70, 3, 6), 90));
  const ImageTransform transform(kRandom, 32, 3, kMean, kStd, Color::Strict, 99);
  ImageTransform::Scratch scratch;
  Image picture;
  transform.picture(file, 2, 3, scratch, picture);
  ASSERT_EQ(picture.width, 32);
  const auto out = applied(transform, file, 2, 3, 3 * 32 * 32);
  for (int i = 0; i < 32 * 32; ++i) {
    for (int c = 0; c < 3; ++c) {
      ASSERT_NEAR(picture.pixels[3 * i + c], out[c * 32 * 32 + i] * kStd[c] + kMean[c], 0.51);
    }
  }
}

TEST(ImageTransform, EverythingOfEveryKindIsInsideTheLevels) {
  for (const TransformKind kind :
       {TransformKind::RandomResizedCrop, TransformKind::PadCrop, TransformKind::CenterCrop, TransformKind::Resize}) {
    for (const int channels : {1, 3}) {
      const ImageTransform transform = levels({.kind = kind, .pad = 60}, 48, channels, Color::Convert);
      for (const auto& [width, height] : std::vector<std::pair<int, int>>{{1, 1}, {3, 200}, {200, 3}, {601, 433}}) {
        const StoredImage file = stored(encode_jpeg(test_picture(width, height, 3, 6), 90));
        for (int64_t sample = 0; sample < 10; ++sample) {
          for (const float level : applied(transform, file, 0, sample, static_cast<size_t>(channels) * 48 * 48)) {
            ASSERT_GE(level, -0.01f);
            ASSERT_LE(level, 255.01f);
          }
        }
      }
    }
  }
}

TEST(ImageTransform, CheckAgreesWithApply) {
  const ImageTransform transform = levels(kRandom, 24);
  const auto whole = encode_jpeg(test_picture(200, 150, 3, 8), 90);
  EXPECT_EQ(verdict(transform, stored(whole), 3 * 24 * 24), std::nullopt);
  int refused = 0;
  for (uint64_t trial = 0; trial < 150; ++trial) {
    auto bytes = whole;
    const RandomBlock words = RandomStream(29, trial, 0).at(0);
    if (trial % 3 == 0) {
      bytes.resize(words[0] % bytes.size());
    } else {
      for (int i = 0; i < 3; ++i) bytes[words[i] % bytes.size()] = static_cast<uint8_t>(words[3] >> (8 * i));
    }
    refused += verdict(transform, stored(bytes), 3 * 24 * 24).has_value();
  }
  EXPECT_GT(refused, 50);
  EXPECT_LT(refused, 150);
  const auto png = encode_png(test_picture(40, 30, 3, 8));
  EXPECT_EQ(verdict(transform, stored(png), 3 * 24 * 24), std::nullopt);
  EXPECT_NE(verdict(transform, stored({png.begin(), png.end() - 30}), 3 * 24 * 24), std::nullopt);
  EXPECT_NE(verdict(transform, stored(encode_jpeg(test_picture(40, 30, 1, 8), 90)), 3 * 24 * 24), std::nullopt);
}

TEST(ImageTransform, RawPlanesMustHaveTheirSizeAndChannels) {
  const Transform resize{.kind = TransformKind::Resize, .mirror = 0};
  StoredImage planes = raw_planes(test_picture(8, 8, 3, 1));
  EXPECT_EQ(verdict(levels(resize, 8), planes, 3 * 64), std::nullopt);
  EXPECT_EQ(verdict(levels(resize, 8, 1), planes, 64),
            "pixels with 3 channels where the network needs 1; write data.color: convert");
  EXPECT_EQ(verdict(levels(resize, 8, 1, Color::Convert), planes, 64), std::nullopt);
  const auto gray = raw_planes(test_picture(8, 8, 1, 1));
  const auto wide = applied(levels(resize, 8, 3, Color::Convert), gray, 0, 0, 3 * 64);
  for (int i = 0; i < 3 * 64; ++i) ASSERT_EQ(wide[i], gray.bytes[i % 64]);
  planes.bytes.pop_back();
  EXPECT_EQ(verdict(levels(resize, 8), planes, 3 * 64), "191 bytes are not 1 or 3 planes of 8x8 pixels");
}

TEST(ImageTransform, WrongArgumentsAreRefused) {
  const Transform unsettled{.kind = TransformKind::Auto};
  EXPECT_THROW(ImageTransform(unsettled, 8, 3, kMean, kStd, Color::Strict, 0), std::invalid_argument);
  EXPECT_THROW(ImageTransform(kRandom, 8, 2, kMean, kStd, Color::Strict, 0), std::invalid_argument);
  EXPECT_THROW(ImageTransform(kRandom, 0, 3, kMean, kStd, Color::Strict, 0), std::invalid_argument);
  EXPECT_THROW(ImageTransform(kRandom, 8, 1, kMean, kStd, Color::Strict, 0), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::data
