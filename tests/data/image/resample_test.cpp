#include "millrace/data/image/resample.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/image/pillow_golden.h"
#include "data/image/test_pictures.h"

namespace millrace::data {
namespace {

Rect all_of(const Image& image) { return {0, 0, image.width, image.height}; }

std::vector<float> resampled(const Image& image, const Rect& visible, const Box& box, bool mirror, int width,
                             int height, const Normalization& normalization = {}) {
  std::vector<float> out(static_cast<size_t>(image.channels) * width * height, -1000.f);
  Resampler().resample(image, visible, box, mirror, width, height, normalization, out.data());
  return out;
}

// The definition, in double: the weights of all visible pixels for every output pixel.
std::vector<double> reference(const Image& image, const Rect& visible, const Box& box, int width, int height) {
  const auto weights = [](int begin, int end, double from, double length, int size, int i) {
    const double step = length / size, reach = std::max(step, 1.0), center = from + (i + 0.5) * step;
    std::vector<double> all;
    double sum = 0;
    for (int k = begin; k < end; ++k) {
      all.push_back(std::max(0.0, 1 - std::abs(k + 0.5 - center) / reach));
      sum += all.back();
    }
    for (double& weight : all) weight /= sum;
    return all;
  };
  std::vector<double> out;
  for (int c = 0; c < image.channels; ++c) {
    for (int y = 0; y < height; ++y) {
      const auto rows = weights(visible.top, visible.bottom(), box.top, box.height, height, y);
      for (int x = 0; x < width; ++x) {
        const auto columns = weights(visible.left, visible.right(), box.left, box.width, width, x);
        double sum = 0;
        for (int i = 0; i < visible.height; ++i) {
          for (int k = 0; k < visible.width; ++k) {
            sum += rows[i] * columns[k] * image.row(visible.top + i)[(visible.left + k) * image.channels + c];
          }
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

Image golden_picture() {
  Image image;
  image.reshape(23, 17, 3);
  for (int y = 0; y < 17; ++y) {
    for (int x = 0; x < 23; ++x) {
      for (int c = 0; c < 3; ++c) {
        image.row(y)[3 * x + c] = static_cast<uint8_t>(x * 7 + y * 13 + c * 50 + (x * y) % 11 * 9);
      }
    }
  }
  return image;
}

// Pillow rounds to 8 bits after each of its two passes: half a level each, and a little for its fixed-point weights.
void expect_golden(const std::vector<float>& planes, const std::vector<uint8_t>& golden) {
  ASSERT_EQ(planes.size(), golden.size());
  const size_t plane = planes.size() / 3;
  for (size_t i = 0; i < plane; ++i) {
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(planes[c * plane + i], golden[3 * i + c], 1.05) << i << " " << c;
  }
}

TEST(Resample, AgreesWithPillow) {
  const Image image = golden_picture();
  expect_golden(resampled(image, all_of(image), {2.5, 1.25, 18, 14.5}, false, 8, 6), kReducedBox);
  expect_golden(resampled(image, all_of(image), {3, 2, 6, 6}, false, 9, 10), kEnlargedBox);
  expect_golden(resampled(image, {4, 3, 16, 12}, {4, 3, 16, 12}, false, 7, 7), kCutThenResized);
}

TEST(Resample, AgreesWithItsDefinition) {
  for (const int channels : {1, 3}) {
    for (uint64_t trial = 0; trial < 60; ++trial) {
      const RandomStream random(23, trial, 0);
      const auto draw = [&](uint64_t block, int word, int count) {
        return static_cast<int>(random.at(block)[word] % static_cast<uint32_t>(count));
      };
      const Image image = test_picture(1 + draw(0, 0, 60), 1 + draw(0, 1, 60), channels, trial);
      Rect visible{draw(1, 0, image.width), draw(1, 1, image.height)};
      visible.width = 1 + draw(2, 0, image.width - visible.left);
      visible.height = 1 + draw(2, 1, image.height - visible.top);
      const Box box{visible.left + 0.3 * uniform(random.at(3)[0]), visible.top + 0.3 * uniform(random.at(3)[1]),
                    visible.width * (0.5 + 0.5 * uniform(random.at(3)[2])),
                    visible.height * (0.5 + 0.5 * uniform(random.at(3)[3]))};
      const int width = 1 + draw(4, 0, 40), height = 1 + draw(4, 1, 40);
      const auto got = resampled(image, visible, box, false, width, height);
      const auto expected = reference(image, visible, box, width, height);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-3) << trial;
      // Mirrored: the same numbers from right to left.
      const auto mirrored = resampled(image, visible, box, true, width, height);
      for (size_t row = 0; row < got.size(); row += width) {
        for (int x = 0; x < width; ++x) ASSERT_EQ(mirrored[row + x], got[row + width - 1 - x]);
      }
    }
  }
}

TEST(Resample, WholePixelsStayAsTheyAre) {
  const Image image = test_picture(40, 30, 3, 1);
  const auto out = resampled(image, all_of(image), {5, 3, 20, 20}, false, 20, 20);
  std::vector<float> copied(out.size());
  copy_pixels(image, 5, 3, false, 20, 20, {}, copied.data());
  EXPECT_EQ(out, copied);
  EXPECT_EQ(copied[20 * 20 + 7 * 20 + 2], image.row(10)[7 * 3 + 1]);
}

TEST(Resample, WhatIsNotVisibleIsNotSeen) {
  Image image = test_picture(40, 30, 3, 1);
  const Rect visible{10, 8, 20, 15};
  const Box box{10, 8, 20, 15};
  const auto before = resampled(image, visible, box, false, 9, 9);
  for (int y = 0; y < 30; ++y) {
    for (int x = 0; x < 40; ++x) {
      if (x >= 10 && x < 30 && y >= 8 && y < 23) continue;
      for (int c = 0; c < 3; ++c) image.row(y)[3 * x + c] ^= 0xFF;
    }
  }
  EXPECT_EQ(resampled(image, visible, box, false, 9, 9), before);
  EXPECT_NE(resampled(image, all_of(image), box, false, 9, 9), before);
}

TEST(Resample, NormalisesEachChannel) {
  const Image image = test_picture(40, 30, 3, 1);
  const std::vector<float> mean{10, 20, 30}, std{2, 4, 5};
  const auto plain = resampled(image, all_of(image), {0, 0, 40, 30}, false, 11, 13);
  const auto scaled = resampled(image, all_of(image), {0, 0, 40, 30}, false, 11, 13, Normalization(mean, std));
  for (size_t i = 0; i < plain.size(); ++i) {
    const size_t c = i / (11 * 13);
    ASSERT_NEAR(scaled[i], (plain[i] - mean[c]) / std[c], 1e-4);
  }
}

TEST(Resample, AFlatPictureStaysFlat) {
  Image image;
  image.reshape(77, 55, 3);
  std::fill(image.pixels.begin(), image.pixels.end(), uint8_t{200});
  for (const int size : {1, 3, 54, 100}) {
    for (const float level : resampled(image, all_of(image), {1.7, 0.2, 70.1, 50.3}, false, size, size)) {
      ASSERT_NEAR(level, 200, 1e-3);
    }
  }
}

TEST(Resample, TablesFollowTheBox) {
  Resampler resampler;  // reused, with a box that changes and changes back
  const Image image = test_picture(40, 30, 3, 1);
  std::vector<float> out(3 * 100);
  for (const double left : {0.0, 3.0, 0.0, 0.0, 5.0}) {
    const Box box{left, 2, 20, 20};
    resampler.resample(image, all_of(image), box, left > 0, 10, 10, {}, out.data());
    EXPECT_EQ(out, resampled(image, all_of(image), box, left > 0, 10, 10));
  }
}

TEST(Resample, CopyIsZeroOutsideBeforeItIsNormalised) {
  const Image image = test_picture(4, 4, 3, 1);
  const std::vector<float> mean{10, 20, 30}, std{2, 4, 5};
  std::vector<float> out(3 * 16);
  for (const bool mirror : {false, true}) {
    copy_pixels(image, -1, 2, mirror, 4, 4, Normalization(mean, std), out.data());
    for (int c = 0; c < 3; ++c) {
      for (int y = 0; y < 4; ++y) {
        for (int x = 0; x < 4; ++x) {
          const int from_x = (mirror ? 3 - x : x) - 1, from_y = y + 2;
          const bool inside = from_x >= 0 && from_y < 4;
          const float level = inside ? image.row(from_y)[3 * from_x + c] : 0;
          ASSERT_FLOAT_EQ(out[c * 16 + y * 4 + x], level * (1 / std[c]) + -mean[c] / std[c]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::data
