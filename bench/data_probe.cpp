// Measures how fast pictures become the network's input, for bench/data.py: JPEG files of a folder, read into memory
// first, go through ImageTransform on one thread. Prints one line of JSON.
//   data_probe FOLDER [passes] [size]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "millrace/data/image/transform.h"

namespace millrace::data {
namespace {

// Of this process, not of the wall: what else runs on the machine does not count.
double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

std::vector<StoredImage> read_folder(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<StoredImage> images;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    images.push_back({.bytes = {std::istreambuf_iterator<char>(file), {}}});
  }
  return images;
}

struct Difference {
  double mean = 0, max = 0, share = 0;  // in levels of 0 to 255; share: of crops that were decoded reduced
};

// The same crops, decoded reduced and decoded whole.
Difference reduced_against_whole(const std::vector<StoredImage>& images, const job::Transform& transform, int size) {
  Decoder decoder;
  Image image;
  Resampler resampler;
  std::vector<float> reduced(static_cast<size_t>(3) * size * size), whole(reduced.size());
  Difference difference;
  int64_t count = 0, crops = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    Decoder::Header header = decoder.open(images[i].bytes, 3, Color::Strict);
    const RandomStream random(1, 0, i);
    const Box box = random_resized_crop(header.width, header.height, transform, random).box;
    ++crops;
    const int least = reduction(box, size);
    if (least == 8) continue;
    const Rect part{static_cast<int>(box.left), static_cast<int>(box.top), static_cast<int>(box.width),
                    static_cast<int>(box.height)};
    for (const int eighths : {least, 8}) {
      decoder.open(images[i].bytes, 3, Color::Strict);
      const Rect held = decoder.decode(part, eighths, image).held;
      const double scale = eighths / 8.0;
      const Box at{box.left * scale - held.left, box.top * scale - held.top, box.width * scale, box.height * scale};
      resampler.resample(image, {0, 0, held.width, held.height}, at, false, size, size, Normalization(),
                         eighths == 8 ? whole.data() : reduced.data());
    }
    for (size_t k = 0; k < whole.size(); ++k, ++count) {
      const double d = std::abs(whole[k] - reduced[k]);
      difference.mean += d;
      difference.max = std::max(difference.max, d);
    }
    difference.share += 1;
  }
  difference.mean /= static_cast<double>(std::max<int64_t>(count, 1));
  difference.share /= static_cast<double>(std::max<int64_t>(crops, 1));
  return difference;
}

int run(const std::string& folder, int passes, int size) {
  const std::vector<StoredImage> images = read_folder(folder);
  if (images.empty()) {
    fmt::print(stderr, "data_probe: no .jpg files in {}\n", folder);
    return 1;
  }
  const job::Transform transform{.kind = job::TransformKind::RandomResizedCrop};
  const std::vector<float> mean{123.675f, 116.28f, 103.53f}, std{58.395f, 57.12f, 57.375f};
  const Normalization normalization(mean, std);
  const ImageTransform image_transform(transform, size, 3, mean, std, Color::Convert, 1);
  ImageTransform::Scratch scratch;
  std::vector<float> out(static_cast<size_t>(3) * size * size);

  double decode_ms = 0, write_ms = 0;
  for (int pass = -1; pass < passes; ++pass) {  // the first only warms up
    if (pass == 0) decode_ms = write_ms = 0;
    for (size_t i = 0; i < images.size(); ++i) {
      const double begin = cpu_ms();
      const ImageTransform::Decoded decoded =
          image_transform.decode(images[i], pass + 1, static_cast<int64_t>(i), scratch);
      const double middle = cpu_ms();
      image_transform.write(decoded, scratch, normalization, out.data());
      decode_ms += middle - begin;
      write_ms += cpu_ms() - middle;
    }
  }
  const double begin = cpu_ms();
  for (const StoredImage& image : images) image_transform.check(image, scratch);
  const double check_ms = cpu_ms() - begin;

  const Difference difference = reduced_against_whole(images, transform, size);
  const double count = static_cast<double>(images.size()) * passes;
  fmt::print(
      "{{\"images_per_s\": {:.1f}, \"decode_ms\": {:.4f}, \"resample_ms\": {:.4f}, \"check_ms\": {:.4f}, "
      "\"reduced_share\": {:.3f}, \"reduced_mean_difference\": {:.3f}, \"reduced_max_difference\": {:.1f}}}\n",
      1e3 * count / (decode_ms + write_ms), decode_ms / count, write_ms / count,
      check_ms / static_cast<double>(images.size()), difference.share, difference.mean, difference.max);
  return 0;
}

}  // namespace
}  // namespace millrace::data

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "data_probe: write data_probe FOLDER [passes] [size]\n");
    return 2;
  }
  try {
    return millrace::data::run(argv[1], argc > 2 ? std::stoi(argv[2]) : 3, argc > 3 ? std::stoi(argv[3]) : 224);
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_probe: {}\n", error.what());
    return 1;
  }
}
