// Pictures for tests: one that resembles a photograph (light falling off, edges, texture), drawn from a number; and the
// small files of corpus/, which also seed the fuzzers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/data/image/image.h"

namespace millrace::data {

inline Image test_picture(int width, int height, int channels, uint64_t number) {
  const RandomStream random(number, 0, 0);
  const auto draw = [&](uint64_t block, int word) { return static_cast<double>(uniform(random.at(block)[word])); };
  struct Wave {
    double amplitude, across, down, phase;
  };
  struct Disc {
    double x, y, radius;
  };
  Image image;
  image.reshape(width, height, channels);
  for (int c = 0; c < channels; ++c) {
    const double base = 60 + 120 * draw(100, c), across = 80 * draw(101, c), down = 60 * draw(102, c);
    std::vector<Wave> waves;  // finer and fainter
    for (uint64_t i = 0; i < 8; ++i) {
      const double pitch = 6.28 * 2 * std::pow(1.8, static_cast<double>(i));
      waves.push_back({30 / std::pow(1.6, static_cast<double>(i)), pitch * (draw(i, 0) + 0.3),
                       pitch * (draw(i, 1) + 0.3), 6.28 * draw(i, 2) + 0.4 * c});
    }
    std::vector<Disc> discs;
    for (uint64_t i = 10; i < 13; ++i) discs.push_back({draw(i, 0), draw(i, 1), 0.1 + 0.2 * draw(i, 2)});
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const double u = static_cast<double>(x) / width, v = static_cast<double>(y) / height;
        double level = base + across * (u - 0.5) + down * (v - 0.5);
        for (const Wave& wave : waves) level += wave.amplitude * std::sin(wave.across * u + wave.down * v + wave.phase);
        for (size_t i = 0; i < discs.size(); ++i) {
          const Disc& disc = discs[i];
          if (std::hypot(u - disc.x, v - disc.y) < disc.radius)
            level = 0.6 * level + 0.4 * 80 * (static_cast<double>(i) + c);
        }
        image.row(y)[x * channels + c] = static_cast<uint8_t>(std::clamp(level, 0.0, 255.0));
      }
    }
  }
  return image;
}

inline std::vector<uint8_t> read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::filesystem::path corpus() {
  return std::filesystem::path(MILLRACE_SOURCE_DIR) / "tests" / "data" / "image" / "corpus";
}

}  // namespace millrace::data
