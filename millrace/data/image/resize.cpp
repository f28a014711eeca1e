#include "millrace/data/image/resize.h"

#include <algorithm>
#include <cmath>

#include "millrace/data/image/resample.h"

namespace millrace::data {

void resize_picture(const Image& from, int width, int height, Image& to) {
  const auto channels = static_cast<size_t>(from.channels);
  std::vector<float> planes(channels * static_cast<size_t>(width) * static_cast<size_t>(height));
  const Box whole{0, 0, static_cast<double>(from.width), static_cast<double>(from.height)};
  Resampler().resample(from, {0, 0, from.width, from.height}, whole, false, width, height, {}, planes.data());
  to.width = width;
  to.height = height;
  to.channels = from.channels;
  to.pixels.resize(planes.size());
  const size_t area = planes.size() / channels;
  for (size_t i = 0; i < planes.size(); ++i) {
    to.pixels[i % area * channels + i / area] = static_cast<uint8_t>(std::clamp(std::lround(planes[i]), 0L, 255L));
  }
}

}  // namespace millrace::data
