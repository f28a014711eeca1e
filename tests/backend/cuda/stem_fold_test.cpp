// The arithmetic of folded images, without a GPU: the folded convolution over folded images is the convolution.
#include "millrace/backend/cuda/stem_fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/graph/builder.h"

namespace millrace::backend::cuda {
namespace {

using graph::Window;

constexpr int64_t kFilters = 3, kPaddedChannels = 8;

graph::Graph stem(const Shape& x, const Window& window, DType dtype) {
  graph::Builder b("stem", x[0], x[1], x[2], x[3], dtype);
  const graph::ValueId y = b.conv("conv", b.images(), {.out_channels = kFilters, .window = window}, {});
  b.softmax_cross_entropy("loss", b.linear("fc", b.flatten("flat", y), {.out_features = 2}, {}), 0);
  return std::move(b).finish();
}

std::vector<double> random_numbers(size_t count, uint64_t seed) {
  const RandomStream random(seed, 0, 0);
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = 2 * uniform(random.at(i / 4)[i % 4]) - 1;
  return values;
}

struct Net {
  Net(const Shape& x, const Window& window, DType dtype)
      : shape(x), v(window), fold(*stem_fold(stem(x, window, dtype))), out_h(v.out_h(x[2])), out_w(v.out_w(x[3])) {
    images = random_numbers(static_cast<size_t>(x.elements()), 1);
    weight.assign(static_cast<size_t>(kFilters * v.kernel_h * v.kernel_w * kPaddedChannels), 0);
    const std::vector<double> numbers = random_numbers(weight.size(), 2);
    for (size_t i = 0; i < weight.size(); ++i) {
      if (static_cast<int64_t>(i) % kPaddedChannels < x[1]) weight[i] = numbers[i];
    }
  }

  double plain(int64_t n, int64_t o, int64_t oh, int64_t ow) const {
    double sum = 0;
    for (int r = 0; r < v.kernel_h; ++r) {
      for (int s = 0; s < v.kernel_w; ++s) {
        const int64_t ih = oh * v.stride_h - v.pad_h + r, iw = ow * v.stride_w - v.pad_w + s;
        if (ih < 0 || ih >= shape[2] || iw < 0 || iw >= shape[3]) continue;
        for (int64_t c = 0; c < shape[1]; ++c) {
          sum += images[static_cast<size_t>(((n * shape[1] + c) * shape[2] + ih) * shape[3] + iw)] *
                 weight[static_cast<size_t>(((o * v.kernel_h + r) * v.kernel_w + s) * kPaddedChannels + c)];
        }
      }
    }
    return sum;
  }

  // Stride 1, no padding.
  double folded(int64_t n, int64_t o, int64_t oh, int64_t ow) const {
    double sum = 0;
    for (int r = 0; r < fold.taps; ++r) {
      for (int s = 0; s < fold.taps; ++s) {
        for (int64_t k = 0; k < fold.stored_c; ++k) {
          const int64_t pixel =
              fold.pixel_of(((n * fold.stored_h + oh + r) * fold.stored_w + ow + s) * fold.stored_c + k);
          const int64_t place =
              fold.place_of(((o * fold.taps + r) * fold.taps + s) * fold.stored_c + k, kPaddedChannels);
          if (pixel >= 0 && place >= 0) sum += images[static_cast<size_t>(pixel)] * weight[static_cast<size_t>(place)];
        }
      }
    }
    return sum;
  }

  Shape shape;
  Window v;
  Fold fold;
  int64_t out_h, out_w;
  std::vector<double> images, weight;
};

TEST(StemFold, TheFoldedConvolutionIsTheConvolution) {
  const std::vector<std::pair<Shape, Window>> stems{
      {{2, 3, 23, 25}, Window::square(7, 2, 3)},  {{2, 3, 32, 30}, Window::square(7, 2, 3)},
      {{1, 3, 63, 64}, Window::square(11, 4, 2)}, {{2, 3, 9, 7}, Window::square(3, 1, 1)},
      {{1, 1, 12, 13}, Window::square(5, 1, 2)},  {{1, 3, 10, 11}, Window::square(2, 2)},
      {{1, 4, 17, 17}, Window::square(3, 2, 1)},  {{1, 3, 20, 20}, Window::square(5, 3)},
      {{2, 3, 32, 48}, Window::square(16, 16)},   {{1, 1, 17, 18}, Window::square(8, 8)}};
  for (const auto& [x, window] : stems) {
    for (const DType dtype : {DType::F16, DType::F32}) {
      SCOPED_TRACE(x.str() + " kernel " + std::to_string(window.kernel_h));
      const Net net(x, window, dtype);
      EXPECT_EQ(net.fold.stored_c % (is_half(dtype) ? 8 : 4), 0);
      for (int64_t n = 0; n < x[0]; ++n) {
        for (int64_t o = 0; o < kFilters; ++o) {
          for (int64_t oh = 0; oh < net.out_h; ++oh) {
            for (int64_t ow = 0; ow < net.out_w; ++ow) {
              ASSERT_NEAR(net.folded(n, o, oh, ow), net.plain(n, o, oh, ow), 1e-9) << oh << " " << ow;
            }
          }
        }
      }
    }
  }
}

// Its gradient goes back to where it came from, each place once.
TEST(StemFold, EveryWeightHasOnePlaceOrNone) {
  for (const Window& window : {Window::square(7, 2, 3), Window::square(11, 4, 2), Window::square(3, 1, 1)}) {
    const Net net({1, 3, 32, 32}, window, DType::F16);
    std::vector<int> found(net.weight.size(), 0);
    for (int64_t i = 0; i < kFilters * net.fold.filter_elements(); ++i) {
      const int64_t place = net.fold.place_of(i, kPaddedChannels);
      if (place >= 0) ++found[static_cast<size_t>(place)];
    }
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], static_cast<int64_t>(i) % kPaddedChannels < 3 ? 1 : 0) << i;
    }
  }
}

TEST(StemFold, WhatWouldNotGainIsLeftAsItIs) {
  EXPECT_FALSE(stem_fold(stem({1, 3, 16, 16}, Window::square(5, 1, 2), DType::F16)));   // 75 channels
  EXPECT_FALSE(stem_fold(stem({1, 64, 16, 16}, Window::square(3, 2, 1), DType::F16)));  // has channels enough
  EXPECT_FALSE(stem_fold(stem({1, 64, 16, 16}, Window::square(8, 8), DType::F16)));
  EXPECT_FALSE(stem_fold(stem({1, 3, 32, 32}, Window::square(9, 8), DType::F16)));  // patches that overlap
  EXPECT_FALSE(stem_fold(stem({1, 3, 16, 16}, Window::square(3, 1, 1, 2), DType::F16)));
}

}  // namespace
}  // namespace millrace::backend::cuda
