#include "millrace/data/image/crop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

using job::Transform;
using job::TransformKind;

bool is_inside(const Box& box, int width, int height) {
  return box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 && box.left + box.width <= width + 1e-9 &&
         box.top + box.height <= height + 1e-9;
}

TEST(Crop, RandomResizedStaysInsideAndKeepsItsLimits) {
  const Transform transform;
  const int extents[][2] = {{500, 375}, {375, 500}, {64, 64}, {1, 1}, {3, 1000}, {1000, 3}, {2, 2}};
  for (const auto& [width, height] : extents) {
    for (uint64_t sample = 0; sample < 500; ++sample) {
      const CropBox crop = random_resized_crop(width, height, transform, RandomStream(1, 2, sample));
      ASSERT_TRUE(is_inside(crop.box, width, height));
      ASSERT_EQ(crop.box.left, std::floor(crop.box.left));
      ASSERT_EQ(crop.box.width, std::floor(crop.box.width));
      if (width >= 64 && height >= 64) {
        const double share = crop.box.width * crop.box.height / width / height;
        ASSERT_GT(share, 0.075);
        ASSERT_LE(share, 1.001);
        ASSERT_GT(crop.box.width / crop.box.height, 0.72);
        ASSERT_LT(crop.box.width / crop.box.height, 1.39);
      }
    }
  }
}

// A small share always fits at the first attempt: then area, shape and place are as drawn.
TEST(Crop, AreaIsEvenShapeEvenInItsLogarithmPlaceEven) {
  Transform transform;
  transform.min_area = 0.1;
  transform.max_area = 0.3;
  const int draws = 20'000, side = 1000;
  double area = 0, area_square = 0, shape = 0, shape_square = 0, left = 0, top = 0;
  for (uint64_t sample = 0; sample < draws; ++sample) {
    const Box box = random_resized_crop(side, side, transform, RandomStream(7, 0, sample)).box;
    const double share = box.width * box.height / side / side, aspect = std::log(box.width / box.height);
    area += share / draws;
    area_square += share * share / draws;
    shape += aspect / draws;
    shape_square += aspect * aspect / draws;
    left += box.left / (side - box.width) / draws;
    top += box.top / (side - box.height) / draws;
  }
  EXPECT_NEAR(area, 0.2, 0.002);
  EXPECT_NEAR(area_square - area * area, 0.2 * 0.2 / 12, 1e-4);
  EXPECT_NEAR(shape, 0, 0.005);
  EXPECT_NEAR(shape_square, std::pow(2 * std::log(4. / 3), 2) / 12, 1e-3);
  EXPECT_NEAR(left, 0.5, 0.01);
  EXPECT_NEAR(top, 0.5, 0.01);
}

TEST(Crop, TheMiddleIsTakenWhereNothingFits) {
  Transform transform;
  transform.attempts = 0;
  const RandomStream random(1, 1, 1);
  EXPECT_EQ(random_resized_crop(400, 100, transform, random).box, (Box{133, 0, 133, 100}));
  EXPECT_EQ(random_resized_crop(90, 400, transform, random).box, (Box{0, 140, 90, 120}));
  EXPECT_EQ(random_resized_crop(120, 100, transform, random).box, (Box{0, 0, 120, 100}));
  transform.attempts = 10;  // no share of so long a picture has an allowed shape
  EXPECT_EQ(random_resized_crop(3000, 100, transform, random).box, (Box{1433, 0, 133, 100}));
}

TEST(Crop, CenterIsTheMiddleOfTheResizedPicture) {
  Transform transform{.kind = TransformKind::CenterCrop};
  const CropBox square = center_crop(256, 256, 224, transform);
  EXPECT_EQ(square.box, (Box{16, 16, 224, 224}));
  EXPECT_TRUE(square.smooth_over_edge);
  // 500x375 becomes 341x256: the middle 224 start at 58 (58.5 to the even side) and 16.
  const Box box = center_crop(500, 375, 224, transform).box;
  EXPECT_NEAR(box.left, 58 * 500. / 341, 1e-9);
  EXPECT_NEAR(box.top, 16 * 375. / 256, 1e-9);
  EXPECT_NEAR(box.width, 224 * 500. / 341, 1e-9);
  EXPECT_NEAR(box.height, 224 * 375. / 256, 1e-9);
}

TEST(Crop, CenterOfLessThanTheInputTakesTheShortSideWhole) {
  const Transform transform{.kind = TransformKind::CenterCrop, .short_side = 100};
  const Box box = center_crop(400, 200, 224, transform).box;
  EXPECT_EQ(box, (Box{100, 0, 200, 200}));
  for (const int side : {1, 7, 100, 3000}) {
    EXPECT_TRUE(is_inside(center_crop(side, 50, 224, transform).box, side, 50));
    EXPECT_TRUE(is_inside(center_crop(50, side, 20, transform).box, 50, side));
  }
}

TEST(Crop, PadMovesByWholePixelsAndReachesEveryPlace) {
  const Transform transform{.kind = TransformKind::PadCrop, .pad = 4};
  std::vector<int> lefts(9), tops(9);
  for (uint64_t sample = 0; sample < 900; ++sample) {
    const Box box = pad_crop(32, 32, 32, transform, RandomStream(3, 0, sample)).box;
    ASSERT_EQ(box.width, 32);
    ASSERT_EQ(box.height, 32);
    ++lefts.at(static_cast<size_t>(box.left + 4));
    ++tops.at(static_cast<size_t>(box.top + 4));
  }
  for (int i = 0; i < 9; ++i) {
    EXPECT_NEAR(lefts[i], 100, 40);
    EXPECT_NEAR(tops[i], 100, 40);
  }
  EXPECT_THROW(pad_crop(20, 32, 32, transform, RandomStream(3, 0, 0)), BadSample);
  EXPECT_NO_THROW(pad_crop(24, 40, 32, transform, RandomStream(3, 0, 0)));
}

TEST(Crop, KeyEpochAndSampleDecideAlone) {
  const Transform transform{.kind = TransformKind::RandomResizedCrop};
  const auto crop = [&](uint64_t key, int64_t epoch, int64_t sample) {
    return choose_crop(500, 375, 224, transform, key, epoch, sample);
  };
  EXPECT_EQ(crop(1, 2, 3), crop(1, 2, 3));
  EXPECT_NE(crop(1, 2, 3).box, crop(2, 2, 3).box);
  EXPECT_NE(crop(1, 2, 3).box, crop(1, 3, 3).box);
  EXPECT_NE(crop(1, 2, 3).box, crop(1, 2, 4).box);
}

TEST(Crop, AKindThatIsNotSettledIsRefused) {
  EXPECT_THROW(choose_crop(10, 10, 8, Transform{.kind = TransformKind::Auto}, 1, 0, 0), std::invalid_argument);
}

TEST(Crop, MirrorHappensAsOftenAsAsked) {
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    const Transform transform{.kind = TransformKind::Resize, .mirror = share};
    int count = 0;
    for (int64_t sample = 0; sample < 4000; ++sample) {
      count += choose_crop(10, 20, 8, transform, 5, 0, sample).mirror;
    }
    EXPECT_NEAR(count, 4000 * share, share == 0 || share == 1 ? 0 : 120);
  }
  EXPECT_EQ(resize_all(10, 20).box, (Box{0, 0, 10, 20}));
}

TEST(Crop, ReductionLeavesAtLeastTheOutput) {
  EXPECT_EQ(reduction({0, 0, 447, 500}, 224), 8);
  EXPECT_EQ(reduction({0, 0, 448, 448}, 224), 4);
  EXPECT_EQ(reduction({0, 0, 895, 4000}, 224), 4);
  EXPECT_EQ(reduction({0, 0, 896, 896}, 224), 2);
  EXPECT_EQ(reduction({0, 0, 1792, 1792}, 224), 1);
  EXPECT_EQ(reduction({0, 0, 9000, 9000}, 224), 1);
  EXPECT_EQ(reduction({0, 0, 10, 10}, 224), 8);
}

}  // namespace
}  // namespace millrace::data
