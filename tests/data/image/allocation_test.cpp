// Once warm, pictures become input without any allocation of ours: operator new is counted in this binary. (libjpeg
// takes and returns a few blocks of its own for every file.)
#include <gtest/gtest.h>

#include "base/counted_new.h"
#include "data/image/test_pictures.h"
#include "millrace/data/image/transform.h"

namespace millrace::data {
namespace {

TEST(ImageAllocation, NoneOnceWarm) {
  std::vector<StoredImage> images;
  for (uint64_t i = 0; i < 6; ++i) {
    const JpegOptions options{.chroma = i % 2 == 0 ? Chroma::Half : Chroma::Full, .progressive = i % 3 == 0};
    images.push_back({.bytes = encode_jpeg(test_picture(100 + 40 * static_cast<int>(i), 120, 3, i), options)});
  }
  StoredImage raw{.bytes = std::vector<uint8_t>(3 * 32 * 32, 7), .raw_size = 32};
  const std::vector<float> mean{1, 2, 3}, std{4, 5, 6};
  for (const job::TransformKind kind : {job::TransformKind::RandomResizedCrop, job::TransformKind::PadCrop,
                                        job::TransformKind::CenterCrop, job::TransformKind::Resize}) {
    const ImageTransform transform({.kind = kind, .pad = 40}, 64, 3, mean, std, Color::Strict, 1);
    ImageTransform::Scratch scratch;
    Image picture;
    std::vector<float> out(3 * 64 * 64);
    const auto pass = [&] {
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        for (const StoredImage& image : images) {
          transform.apply(image, epoch, 1, scratch, out.data());
          transform.check(image, scratch);
        }
        transform.apply(raw, epoch, 1, scratch, out.data());
        transform.picture(images[0], epoch, 1, scratch, picture);
      }
    };
    pass();
    const int64_t before = news;
    pass();
    EXPECT_EQ(news - before, 0);
  }
}

}  // namespace
}  // namespace millrace::data
